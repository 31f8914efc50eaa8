"""The update: one or many learners, whole or sharded, and the state that a checkpoint keeps."""
