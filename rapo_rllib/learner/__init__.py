"""The update by one or many learners, with whole or sharded weights, and the training state that a checkpoint keeps."""
