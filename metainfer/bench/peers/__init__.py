"""The frameworks that an engine is measured against, each in its fastest mode that the machine allows."""
