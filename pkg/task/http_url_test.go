package task

import (
	"regexp"
	"testing"
)

// FuzzIsHostName compares isHostName with the pattern that it stands for.
func FuzzIsHostName(f *testing.F) {
	pattern := regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?(\.[A-Za-z0-9_]([A-Za-z0-9_-]*[A-Za-z0-9_])?)*\.?$`)

	for _, host := range []string{"", ".", "a", "a.", "a..", ".a", "a..b", "-a", "a-", "a-b", "a.-b", "a-.b", "_x.y_", "127.0.0.1", "api.corp", "é", "a b", "a:1", "a\n", "--", "1-1"} {
		f.Add(host)
	}

	f.Fuzz(func(t *testing.T, host string) {
		if got, want := isHostName(host), pattern.MatchString(host); got != want {
			t.Errorf("isHostName(%q) = %v, want %v", host, got, want)
		}
	})
}
