package factory_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/cli/factory"
)

func TestAsk_ASevereVerbWantsTheNumberTyped(t *testing.T) {
	for answer, want := range map[string]bool{"3\n": true, " 3 \n": true, "y\n": false, "yes\n": false, "4\n": false, "": false} {
		var errs bytes.Buffer
		a := factory.New(factory.IO{In: strings.NewReader(answer), Err: &errs, Env: func(string) string { return "" }})
		a.Terminal = func(any) (int, bool) { return 80, true }
		if ok, err := a.Ask(t.Context(), "freeze the whole cluster with its 3 tasks?", 3, true); ok != want || ok != (err == nil) {
			t.Errorf("%q: %v, %v", answer, ok, err)
		}

		if !strings.Contains(errs.String(), "Type 3 to confirm") {
			t.Errorf("it asks %q", errs.String())
		}
	}
}
