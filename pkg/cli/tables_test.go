package cli

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/jedib0t/go-pretty/v6/text"
)

var updateTables = flag.Bool("update", false, "rewrite testdata/tables/narrow.txt")

// TestTables_FitNarrowTerminals: no table is wider than a terminal, and it shows what matters most. To accept a change, run the test with
// -update and read the difference.
func TestTables_FitNarrowTerminals(t *testing.T) {
	const golden = "testdata/tables/narrow.txt"
	server := answeringServer(t)

	var all strings.Builder
	for _, width := range []int{60, 80, 120} {
		for _, command := range tableCommands {
			out, _ := printed(t, server.URL, width, "America/New_York", strings.Fields(command)...)
			tables, _, _ := strings.Cut(out, "\nAdvice\n") // which is text
			for line := range strings.Lines(tables) {
				if n := text.StringWidthWithoutEscSequences(strings.TrimRight(line, "\n")); n > width {
					t.Errorf("carillon %s: %d columns in a terminal of %d: %s", command, n, width, line)
				}
			}

			fmt.Fprintf(&all, "$ carillon %s   # %d columns\n%s\n", command, width, out)
		}
	}

	if *updateTables {
		if err := os.WriteFile(golden, []byte(all.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}

	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if all.String() != string(want) {
		t.Errorf("the tables differ from %s; they are now:\n%s", golden, all.String())
	}
}

// TestTables_KeepTimesWhole: in 80 columns, the times of the next and the last run are whole, whatever the names of the tasks are, and nothing
// that can be typed again is cut.
func TestTables_KeepTimesWhole(t *testing.T) {
	server := answeringServer(t)

	out, _ := printed(t, server.URL, 80, "America/New_York", "task", "list")
	for _, want := range []string{"nightly-backup-of-the-orders-1  Mon 02:00 EST ", " 15h ago", "report-to-management ", " 1 Jan 2027 ", "sync-of-the-warehouse ", "✓ succeeded  ✓✓✗✓✓\n", "LAST 5"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing:\n%s", want, out)
		}
	}

	out, _ = printed(t, server.URL, 80, "America/New_York", "run", "list")
	for _, want := range []string{"nightly-backup-of-the-orders-1  20261120T070000.000Z-lu7q ", " 20261119T123456.789Z-7q2n-cx73 ", "✓ succeeded"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is missing:\n%s", want, out)
		}
	}
}
