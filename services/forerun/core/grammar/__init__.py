"""What a model may write where only valid tool calls will do: JSON Schemas as automata over bytes. Pure."""
