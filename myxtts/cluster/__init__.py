"""Several processes that train one model: who they are, how they meet, how they add up, and how they notice a death."""
