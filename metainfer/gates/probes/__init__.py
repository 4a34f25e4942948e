"""Programs of the gates that run inside the sandbox beside an engine. They measure; judging is done outside."""
