package output_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/carillonhq/carillon/pkg/cli/factory/factorytest"
	"github.com/carillonhq/carillon/pkg/cli/output"
)

// Sanitized JSON has the same meaning as before.
func TestSanitizeJSON_SaysTheSame(t *testing.T) {
	for _, evil := range factorytest.Hostile {
		evil = strings.ToValidUTF8(evil, "\ufffd")
		b, err := output.CompactJSON(map[string]string{"k" + evil: evil})
		if err != nil {
			t.Fatal(err)
		}

		var got map[string]string
		if err := json.Unmarshal(output.SanitizeJSON(b), &got); err != nil || got["k"+evil] != evil {
			t.Errorf("%q became %q, %v", evil, got, err)
		}
	}
}
