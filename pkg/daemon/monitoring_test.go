package daemon_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/carillonhq/carillon/pkg/internal/certs"
	"github.com/carillonhq/carillon/pkg/internal/secret"
	"github.com/carillonhq/carillon/pkg/task"
)

// scraped are the metrics of a node: by name, the values of each label.
type scraped map[string]map[string][]string

var (
	samplePattern  = regexp.MustCompile(`(?m)^([a-zA-Z_:]+)(?:\{(.*)\})? [^ ]+$`)
	labelPattern   = regexp.MustCompile(`([a-zA-Z_]+)="((?:[^"\\]|\\.)*)"`)
	seriesPattern  = regexp.MustCompile(`\b((?:carillon_[a-z_]+)|up\b)(?:\{([^}]*)\})?`)
	matcherPattern = regexp.MustCompile(`([a-zA-Z_]+)\s*(=~|!~|!=|=)\s*"([^"]*)"`)
	byPattern      = regexp.MustCompile(`\bby\s*\(([^)]*)\)`)
	legendPattern  = regexp.MustCompile(`\{\{\s*(?:\$labels\.)?([a-z_]+)\s*\}\}`)
)

// parseScrape reads the metrics from an answer.
func parseScrape(body string) scraped {
	s := scraped{}
	for _, m := range samplePattern.FindAllStringSubmatch(body, -1) {
		if s[m[1]] == nil {
			s[m[1]] = map[string][]string{}
		}
		for _, l := range labelPattern.FindAllStringSubmatch(m[2], -1) {
			if !slices.Contains(s[m[1]][l[1]], l[2]) {
				s[m[1]][l[1]] = append(s[m[1]][l[1]], l[2])
			}
		}
	}

	return s
}

// ofPrometheus are the labels that Prometheus adds, and those of what it exports itself.
var ofPrometheus = []string{"instance", "job", "le"}

// check returns what is wrong with a query: a metric or a label that the node does not export, or the value of a label that it never has.
// more are labels that a legend or an annotation names.
func (s scraped) check(query string, more []string) (faults []string) {
	var labels []string
	for _, m := range seriesPattern.FindAllStringSubmatch(query, -1) {
		name := m[1]
		if name == "up" {
			continue
		}
		if s[name] == nil {
			faults = append(faults, "no metric "+name)
			continue
		}

		for label := range s[name] {
			labels = append(labels, label)
		}
		for _, c := range matcherPattern.FindAllStringSubmatch(m[2], -1) {
			switch values := s[name][c[1]]; {
			case slices.Contains(ofPrometheus, c[1]):
			case values == nil:
				faults = append(faults, fmt.Sprintf("%s has no label %s", name, c[1]))
			case !strings.HasSuffix(c[2], "~") && !slices.Contains(values, c[3]):
				faults = append(faults, fmt.Sprintf("%s{%s} is never %q, but one of %q", name, c[1], c[3], values))
			}
		}
	}

	for _, m := range byPattern.FindAllStringSubmatch(query, -1) {
		more = append(more, strings.FieldsFunc(m[1], func(r rune) bool { return r == ',' || r == ' ' })...)
	}
	for _, label := range more {
		if !slices.Contains(ofPrometheus, label) && !slices.Contains(labels, label) {
			faults = append(faults, "no label "+label)
		}
	}

	return faults
}

// alertRule is a rule of deploy/prometheus/rules.yaml.
type alertRule struct {
	Alert, Expr         string
	Labels, Annotations map[string]string
}

// readAlertRules reads the rules.
func readAlertRules(t *testing.T) (list []alertRule) {
	t.Helper()
	var file struct{ Groups []struct{ Rules []alertRule } }
	b, err := os.ReadFile("../../deploy/prometheus/rules.yaml")
	if err == nil {
		err = yaml.Unmarshal(b, &file)
	}
	if err != nil {
		t.Fatal(err)
	}

	for _, g := range file.Groups {
		list = append(list, g.Rules...)
	}

	return list
}

// dashboardQuery is a query of deploy/grafana/carillon.json, with its legend.
type dashboardQuery struct{ Title, Expr, Legend string }

// readDashboard reads the queries of the dashboard.
func readDashboard(t *testing.T) (list []dashboardQuery) {
	t.Helper()
	var file struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
		Templating struct {
			List []struct {
				Name  string
				Query any // a string, or an object
			}
		}
	}
	b, err := os.ReadFile("../../deploy/grafana/carillon.json")
	if err == nil {
		err = json.Unmarshal(b, &file)
	}
	if err != nil {
		t.Fatal(err)
	}

	for _, p := range file.Panels {
		for _, q := range p.Targets {
			list = append(list, dashboardQuery{p.Title, q.Expr, q.LegendFormat})
		}
	}
	for _, v := range file.Templating.List {
		if query, ok := v.Query.(map[string]any); ok {
			text := fmt.Sprint(query["query"])
			if m := regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`).FindStringSubmatch(text); m != nil {
				text = fmt.Sprintf("sum by (%s) (%s)", m[2], m[1])
			}
			list = append(list, dashboardQuery{Title: "variable " + v.Name, Expr: text})
		}
	}

	return list
}

// Each alert has a section in the manual that says what to do.
func TestMonitoring_EachAlertHasARunbook(t *testing.T) {
	t.Parallel()
	const page = "https://github.com/carillonhq/carillon/blob/main/docs/how-to/monitor.md#"
	b, err := os.ReadFile("../../docs/how-to/monitor.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := regexp.MustCompile(`(?m)^### (Carillon\w+)$`).FindAllStringSubmatch(string(b), -1)

	var described, alerts []string
	for _, s := range sections {
		described = append(described, s[1])
	}
	for _, r := range readAlertRules(t) {
		alerts = append(alerts, r.Alert)
		if r.Annotations["runbook_url"] != page+strings.ToLower(r.Alert) || r.Annotations["summary"] == "" || r.Annotations["description"] == "" ||
			!slices.Contains([]string{"critical", "warning", "info"}, r.Labels["severity"]) {
			t.Errorf("%s: %v %v", r.Alert, r.Labels, r.Annotations)
		}
	}
	if !slices.Equal(described, alerts) {
		t.Errorf("the manual has %v, and the rules have %v", described, alerts)
	}
}

// The rules and the dashboard name only metrics, labels and values that a node exports.
func TestMonitoring_NamesWhatANodeExports(t *testing.T) {
	if testing.Short() {
		t.Skip("whole daemons: make test-cluster")
	}
	t.Parallel()
	c := newCluster(t, "--shards", "8", "--audit-file", filepath.Join(t.TempDir(), "audit"))
	pki := newPKI(t)
	caller, err := certs.Open(pki.client("caller"))
	if err != nil {
		t.Fatal(err)
	}
	c.caller = caller
	f := pki.node("n1")
	flags := []string{"--tls-cert", f.Cert, "--tls-key", f.Key, "--tls-ca", f.CA}
	isRoot := os.Geteuid() == 0
	if isRoot { // others may have neither keys nor a policy
		keys, policy := secret.KeyFile(filepath.Join(t.TempDir(), "keys")), filepath.Join(t.TempDir(), "policy")
		if _, _, err := keys.New(false); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(policy, []byte("users: [nobody]\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		flags = append(flags, "--secret-keys", string(keys), "--policy", policy)
	}
	p := c.start("n1", flags...)

	// Some metrics begin with the first event: a commit, an end, a refused login.
	s := spec("watched", "exit 0")
	has := true
	s.Metrics, s.Action = &has, task.Action{Noop: &task.Noop{}} // the policy does not matter
	c.create("n1", s)
	c.until("n1", "watched", c.trigger("n1", "watched").ID, task.Succeeded)
	refused, err := http.NewRequest(http.MethodGet, p.url()+"/v1/cluster", nil)
	if err != nil {
		t.Fatal(err)
	}
	refused.Header.Set("Authorization", "Bearer carillon_wrong")
	if res, err := p.caller().Do(refused); err != nil || res.StatusCode != http.StatusUnauthorized {
		t.Fatalf("a wrong token: %v %v", res, err)
	}

	eventually(t, func() error {
		_, body := read(t, http.DefaultClient, p.metricsURL())
		s := parseScrape(body)
		var faults []string

		for _, r := range readAlertRules(t) {
			if !isRoot && (strings.Contains(r.Expr, "_policy_broken") || strings.Contains(r.Expr, "_secret_keys_broken")) {
				continue
			}
			var named []string
			for _, text := range r.Annotations {
				for _, m := range legendPattern.FindAllStringSubmatch(text, -1) {
					named = append(named, m[1])
				}
			}
			for _, fault := range s.check(r.Expr, named) {
				faults = append(faults, r.Alert+": "+fault)
			}
		}
		for _, q := range readDashboard(t) {
			var named []string
			for _, m := range legendPattern.FindAllStringSubmatch(q.Legend, -1) {
				named = append(named, m[1])
			}
			for _, fault := range s.check(q.Expr, named) {
				faults = append(faults, "dashboard, "+q.Title+": "+fault)
			}
		}

		if len(faults) > 0 {
			return errors.New(strings.Join(faults, "\n"))
		}
		return nil
	})
}
