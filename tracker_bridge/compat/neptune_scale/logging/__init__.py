"""`neptune_scale.logging`: only the place of `neptune_scale.logging.logging_handler`."""
