package cli

import (
	"strings"
)

// inContext names the context in a question, so that nobody says yes in the wrong one.
func (a *app) inContext(question string) string {
	s, err := a.Settings()
	if err != nil || s.Name == "" {
		return question
	}
	return strings.TrimSuffix(question, "?") + " in context " + s.Name + "?"
}
