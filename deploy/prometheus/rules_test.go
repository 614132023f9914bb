// Package prometheus evaluates the alert rules with Prometheus' own engine. It is a module of its own, so that Carillon does not depend on
// Prometheus: make deploy-test.
package prometheus

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/template"
	"github.com/prometheus/prometheus/util/annotations"
	"go.yaml.in/yaml/v3"
)

// testFile is a file in the format of promtool test rules, as far as rules_test.yaml uses it.
type testFile struct {
	RuleFiles          []string       `yaml:"rule_files"`
	EvaluationInterval model.Duration `yaml:"evaluation_interval"`
	Tests              []struct {
		Interval    model.Duration
		InputSeries []struct{ Series, Values string } `yaml:"input_series"`
		Alerts      []struct {
			EvalTime  model.Duration `yaml:"eval_time"`
			Alertname string
			Want      []alert `yaml:"exp_alerts"`
		} `yaml:"alert_rule_test"`
	}
}

// alert is an alert that fires.
type alert struct {
	Labels      map[string]string `yaml:"exp_labels"`
	Annotations map[string]string `yaml:"exp_annotations"`
}

func (a alert) String() string {
	var b strings.Builder
	for _, m := range []map[string]string{a.Labels, a.Annotations} {
		for _, name := range slices.Sorted(maps.Keys(m)) {
			fmt.Fprintf(&b, "%s=%q ", name, m[name])
		}
	}

	return b.String()
}

// series are recorded series. They implement storage.Queryable.
type series []promql.Series

func (s series) Querier(mint, maxt int64) (storage.Querier, error) { return querier{series: s}, nil }

// querier selects from series. Only Select is used.
type querier struct {
	storage.LabelQuerier
	series series
}

func (querier) Close() error { return nil }

func (q querier) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	set := &seriesSet{at: -1}
	for _, s := range q.series {
		if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.Metric.Get(m.Name)) }) {
			set.list = append(set.list, s)
		}
	}

	return set
}

// seriesSet iterates over series.
type seriesSet struct {
	list series
	at   int
}

func (s *seriesSet) Next() bool                      { s.at++; return s.at < len(s.list) }
func (s *seriesSet) At() storage.Series              { return promql.NewStorageSeries(s.list[s.at]) }
func (*seriesSet) Err() error                        { return nil }
func (*seriesSet) Warnings() annotations.Annotations { return nil }

// evaluation evaluates one rule over recorded series.
type evaluation struct {
	engine *promql.Engine
	data   series
	rule   rulefmt.Rule
	since  map[string]time.Time // by labels, when the expression began to return this alert
}

// step evaluates the rule once, and returns the alerts that fire.
func (e *evaluation) step(ctx context.Context, at time.Time) (firing []alert, err error) {
	q, err := e.engine.NewInstantQuery(ctx, e.data, nil, e.rule.Expr, at)
	if err != nil {
		return nil, err
	}
	defer q.Close()
	result := q.Exec(ctx)
	vector, err := result.Vector()
	if err != nil {
		return nil, err
	}

	active := map[string]time.Time{}
	for _, sample := range vector {
		found := sample.Metric.Map()
		delete(found, labels.MetricName)

		key := fmt.Sprint(found)
		began, isActive := e.since[key]
		if !isActive {
			began = at
		}
		if _, twice := active[key]; twice {
			return nil, fmt.Errorf("several series have the labels %s", key)
		}
		active[key] = began
		if at.Sub(began) < time.Duration(e.rule.For) {
			continue
		}

		expand := func(text string) string {
			data := template.AlertTemplateData(found, nil, "", sample)
			variables := "{{$labels := .Labels}}{{$value := .Value}}"
			out, expandErr := template.NewTemplateExpander(ctx, variables+text, e.rule.Alert, data, model.TimeFromUnixNano(at.UnixNano()), nil, &url.URL{}, nil).Expand()
			if expandErr != nil {
				err = fmt.Errorf("%q: %w", text, expandErr)
			}
			return out
		}
		a := alert{Labels: maps.Clone(found), Annotations: map[string]string{}}
		for name, text := range e.rule.Labels {
			a.Labels[name] = expand(text)
		}
		for name, text := range e.rule.Annotations {
			a.Annotations[name] = expand(text)
		}
		firing = append(firing, a)
	}
	e.since = active

	return firing, err
}

// Each rule fires as rules_test.yaml says, and each is expected to fire somewhere in it.
func TestRules_FireAsExpected(t *testing.T) {
	var file testFile
	b, err := os.ReadFile("rules_test.yaml")
	if err == nil {
		err = yaml.Unmarshal(b, &file)
	}
	if err != nil || len(file.Tests) == 0 {
		t.Fatal(len(file.Tests), err)
	}

	p := parser.NewParser(parser.Options{})
	rules := map[string]rulefmt.Rule{}
	for _, name := range file.RuleFiles {
		groups, errs := rulefmt.ParseFile(name, false, model.LegacyValidation, p, slog.New(slog.DiscardHandler))
		if len(errs) > 0 {
			t.Fatal(errs)
		}
		for _, g := range groups.Groups {
			for _, r := range g.Rules {
				rules[r.Alert] = r
			}
		}
	}

	engine := promql.NewEngine(promql.EngineOpts{MaxSamples: 1e7, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, Parser: p})
	fired := map[string]bool{}
	for i, test := range file.Tests {
		var data series
		for _, in := range test.InputSeries {
			metric, values, err := p.ParseSeriesDesc(in.Series + " " + in.Values)
			if err != nil {
				t.Fatalf("test %d: %s: %v", i+1, in.Series, err)
			}
			s := promql.Series{Metric: metric}
			for n, v := range values {
				if !v.Omitted {
					s.Floats = append(s.Floats, promql.FPoint{T: int64(n) * time.Duration(test.Interval).Milliseconds(), F: v.Value})
				}
			}
			data = append(data, s)
		}

		for _, want := range test.Alerts {
			rule, exists := rules[want.Alertname]
			if !exists {
				t.Fatalf("there is no rule %s", want.Alertname)
			}

			e := &evaluation{engine: engine, data: data, rule: rule}
			var got []alert
			for at := time.UnixMilli(0); !at.After(time.UnixMilli(0).Add(time.Duration(want.EvalTime))); at = at.Add(time.Duration(file.EvaluationInterval)) {
				if got, err = e.step(t.Context(), at); err != nil {
					t.Fatalf("%s: %v", want.Alertname, err)
				}
			}

			order := func(a, b alert) int { return strings.Compare(a.String(), b.String()) }
			slices.SortFunc(got, order)
			slices.SortFunc(want.Want, order)
			fired[want.Alertname] = fired[want.Alertname] || len(want.Want) > 0
			if fmt.Sprint(got) != fmt.Sprint(want.Want) {
				t.Errorf("test %d, %s at %s: got\n%s\nwant\n%s", i+1, want.Alertname, want.EvalTime, got, want.Want)
			}
		}
	}

	for name := range rules {
		if !fired[name] {
			t.Errorf("no test expects %s to fire", name)
		}
	}
}

// The expressions of the dashboard are valid once Grafana has replaced their variables. A test of the daemon compares their metrics with
// those of a node.
func TestDashboard_ExpressionsAreValid(t *testing.T) {
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	b, err := os.ReadFile("../grafana/carillon.json")
	if err == nil {
		err = json.Unmarshal(b, &dashboard)
	}
	if err != nil {
		t.Fatal(err)
	}

	p, n := parser.NewParser(parser.Options{}), 0
	for _, panel := range dashboard.Panels {
		for _, target := range panel.Targets {
			expr := strings.NewReplacer("$__rate_interval", "5m", "$__interval", "1m", "$namespace", ".*").Replace(target.Expr)
			if _, err := p.ParseExpr(expr); err != nil || strings.Contains(expr, "$") {
				t.Errorf("%s: %s: %v", panel.Title, target.Expr, err)
			}
			n++
		}
	}
	if n == 0 {
		t.Error("the dashboard has no expressions")
	}
}
