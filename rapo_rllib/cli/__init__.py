"""The ``rllib`` command, which Ray no longer ships. Heavy imports happen after the arguments are parsed."""
