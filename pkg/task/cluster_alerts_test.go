package task

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

func TestParsePublicURL(t *testing.T) {
	for text, want := range map[string]string{
		"":                              "",
		"https://carillon.example.com":  "https://carillon.example.com",
		"http://[::1]:7070/":            "http://[::1]:7070",
		"https://example.com/carillon/": "https://example.com/carillon",
	} {
		if got, err := ParsePublicURL(text); err != nil || got != want {
			t.Errorf("%q: %q, %v; want %q", text, got, err, want)
		}
	}

	for _, text := range []string{
		"carillon.example.com", "ftp://example.com", "javascript:alert(1)", "https://", "https://user:pass@example.com", "https://example.com?x", "https://example.com/?",
		"https://example.com/#top", "https://exämple.com", "https://example.com/a b", "https://example.com/\n", "https://" + strings.Repeat("a", 300),
	} {
		var fault *Error
		if got, err := ParsePublicURL(text); !errors.As(err, &fault) || fault.Field != "public_url" {
			t.Errorf("%q: %q, %v; want an error", text, got, err)
		}
	}
}

func TestCheckAlertReceivers(t *testing.T) {
	if err := CheckAlertReceivers([]string{"ops/slack", "ops/mail", "web/slack"}); err != nil {
		t.Error(err)
	}

	many := make([]string, 11)
	for i := range many {
		many[i] = fmt.Sprintf("ops/r%d", i)
	}
	for field, list := range map[string][]string{
		"alert_receivers":    many,
		"alert_receivers[0]": {"slack"},
		"alert_receivers[1]": {"ops/slack", "ops/Slack"},
		"alert_receivers[2]": {"ops/slack", "ops/mail", "ops/slack"},
		"alert_receivers[3]": {"a/b", "a/c", "a/d", "a/b/c"},
	} {
		var fault *Error
		if err := CheckAlertReceivers(list); !errors.As(err, &fault) || fault.Field != field {
			t.Errorf("%q: %v; want an error of %s", list, err, field)
		}
	}
}
