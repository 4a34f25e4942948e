"""The run, cut into jobs by privilege: what makes an engine, what runs it and what may write share only files."""
