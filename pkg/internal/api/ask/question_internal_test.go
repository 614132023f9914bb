package ask

import (
	"crypto/ed25519"
	"fmt"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/carillonhq/carillon/pkg/internal/api/httpapi"
	"github.com/carillonhq/carillon/pkg/internal/api/peers"
	"github.com/carillonhq/carillon/pkg/internal/readmodel"
	"github.com/carillonhq/carillon/pkg/task"
)

// parseLine parses a query line.
func parseLine(t *testing.T, text string) (q readmodel.QueryLine) {
	t.Helper()
	if err := q.UnmarshalText([]byte(text)); err != nil {
		t.Fatal(err)
	}

	return q
}

func TestQuestion_NodesReadWhatOthersWrite(t *testing.T) {
	t.Parallel()

	for _, q := range []Question{
		{Order: readmodel.ByName},
		{Order: readmodel.ByName, Within: []string{}}, // none: it must not become all
		{Order: readmodel.ByName, Within: []string{"a", "b"}, Limit: MaxLimit},
		{Order: readmodel.ByNext, Namespace: "prod", Query: parseLine(t, `next:<1h name~"a & b"`), After: &readmodel.Place{Key: -7, Name: "prod/x", Shard: 3}, Now: 1_800_000_000_000},
		{Order: readmodel.ByName, MinRevisions: Revisions{0: 1, 12: 1 << 40}, Without: []int{0, 7}},
		{Order: readmodel.ByName, Load: &readmodel.LoadRange{From: 0, Minutes: 1}},
		{Order: readmodel.ByName, Load: &readmodel.LoadRange{From: 1_800_000_000_000, Minutes: 1440, Makers: []int{0, 1439}}},
		{Order: readmodel.ByName, Runs: &readmodel.RunsRange{Before: "20261120T220500.000Z", Limit: MaxRecentRuns}},
		{Order: readmodel.ByName, Splits: maxSplitEvery},
	} {
		if got, err := decodeQuestion(q.encode()); err != nil || !reflect.DeepEqual(got, q) {
			t.Errorf("%s became %+v, %v", q.encode(), got, err)
		}
	}

	// The scan searches Within, and tasks are in the order of their names by default.
	got, err := decodeQuestion(`{"within": ["b", "a"]}`)
	if err != nil || !slices.Equal(got.Within, []string{"a", "b"}) || got.Order != readmodel.ByName {
		t.Errorf("%+v, %v", got, err)
	}
}

func TestQuestion_RefusesWhatBreaksItsLimits(t *testing.T) {
	t.Parallel()

	makers := "0" + strings.Repeat(",0", MaxMakers)
	for text, want := range map[string]string{
		``:                                    "unexpected end of JSON",
		`{"limit": 20001}`:                    "limit: 20001 is not between 0 and 20000",
		`{"limit": -1}`:                       "limit: -1 is not between 0 and 20000",
		`{"splits": -1}`:                      "splits: -1 is not between 0 and 100000",
		`{"now": -1}`:                         "now: -1 is not between 0 and 9223372036854775807",
		`{"order": "size"}`:                   `order: "size" is not one of name, next, last, lateness, duration or failures`,
		`{"query": "nosuch:x"}`:               `query: term "nosuch:x": "nosuch" is not one of name, namespace, state, action, label, selector, next, tick, last, success, duration, lateness, failures, alert, notify`,
		`{"runs": {"limit": 0}}`:              "runs.limit: 0 is not between 1 and 5000",
		`{"runs": {"limit": 5001}}`:           "runs.limit: 5001 is not between 1 and 5000",
		`{"load": {"from": 1, "minutes": 5}}`: "load.from: 1 is not the beginning of a minute",
		`{"load": {"from": -60000, "minutes": 5}}`:                        "load.from: -60000 is not between 0 and 9223372036854775807",
		`{"load": {"from": 0, "minutes": 0}}`:                             "load.minutes: 0 is not between 1 and 1440",
		`{"load": {"from": 0, "minutes": 1441}}`:                          "load.minutes: 1441 is not between 1 and 1440",
		`{"load": {"from": 0, "minutes": 5, "makers": [5]}}`:              "load.makers: 5 is not between 0 and 4",
		`{"load": {"from": 0, "minutes": 5, "makers": [-1]}}`:             "load.makers: -1 is not between 0 and 4",
		`{"load": {"from": 0, "minutes": 5, "makers": [` + makers + `]}}`: "load.makers: 22 is not between 0 and 21",
		`{"min_revisions": {"-1": 7}}`:                                    "min_revisions: -1 is not between 0 and 2147483647",
		`{"min_revisions": {"3": -7}}`:                                    "min_revisions: -7 is not between 0 and 9223372036854775807",
		`{"only_unknown": true}`:                                          "only_unknown: is not a field",
		`{"limit": 1, "limit": 2}`:                                        "limit: is given twice",
		`{} {}`:                                                           "unexpected data after the JSON value",
	} {
		if q, err := decodeQuestion(text); err == nil || err.Error() != want {
			t.Errorf("%s became %+v, %v, want %s", text, q, err, want)
		}
	}
}

// Callers share an answer only if nothing but what they have written differs.
func TestQuestion_Key(t *testing.T) {
	t.Parallel()

	q := Question{Within: []string{"a"}, Query: parseLine(t, "state:failed"), Limit: 5}
	same, all, none := q, q, q
	same.MinRevisions = Revisions{1: 7}
	all.Within, none.Within = nil, []string{}

	if same.Key() != q.Key() {
		t.Errorf("%s and %s differ", same.Key(), q.Key())
	}
	if all.Key() == q.Key() || none.Key() == q.Key() || all.Key() == none.Key() {
		t.Error("questions about other namespaces are equal")
	}
}

// The question is part of a URI. A thousand names, with the namespaces that the caller may read, must fit.
func TestQuestion_ThousandNamesFit(t *testing.T) {
	t.Parallel()

	_, key, err := ed25519.GenerateKey(nil)
	if err != nil {
		t.Fatal(err)
	}
	client := peers.New(peers.Config{Node: "n1", Key: key, Now: time.Now})

	q := Question{Order: readmodel.ByNext, Limit: MaxLimit, Now: 1_800_000_000_000}
	names := make([]string, 1000)
	for i := range names {
		names[i] = fmt.Sprintf("nightly-backup-%05d", i)
	}
	for i := range 1000 {
		q.Within = append(q.Within, fmt.Sprintf("customer-team-%05d", i))
	}
	q.Query = parseLine(t, "name:"+strings.Join(names, ","))

	req, err := client.NewRequest(t.Context(), httpapi.Caller{}, task.Node{Name: "n2", Address: "http://n2:7070"}, "GET", url.Values{"question": {q.encode()}}, "v1", "tasks:ask")
	if err != nil || len(req.URL.RequestURI()) > peers.MaxURI {
		t.Fatalf("%d bytes, %v", len(req.URL.RequestURI()), err)
	}

	again, err := decodeQuestion(req.URL.Query().Get("question"))
	if err != nil || !reflect.DeepEqual(again, q) {
		t.Errorf("the question has changed: %v", err)
	}
}
