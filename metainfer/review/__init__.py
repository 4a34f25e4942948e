"""Review of knowledge: who approved which head, what a change takes back, and what people may tell the bot to do."""
