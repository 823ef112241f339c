"""POP consumption: messages are handed out with an invisible time and acknowledged one by one."""
