package audit

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/schedule"
	"github.com/carillonhq/carillon/pkg/internal/wording"
	"github.com/carillonhq/carillon/pkg/task"
)

// logFlags select audit records.
type logFlags struct {
	since, until, subject, operation, object string
}

func (l *logFlags) defineFlags(f *factory.Factory, cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&l.since, "since", "", "start at this `TIME`, or a duration ago such as 15m or 7d")
	flags.StringVar(&l.until, "until", "", "stop before this `TIME`, or a duration ago")
	flags.StringVar(&l.subject, "subject", "", "only what this `SUBJECT` has done, such as user:ann or service:ci")
	flags.StringVar(&l.operation, "operation", "", "only this `OPERATION` of the API, such as pause-task")
	flags.StringVar(&l.object, "object", "", "only changes of this object, `KIND/NAME` or KIND/, such as task/report or binding/")
	complete.Register(cmd, "subject", complete.Subjects(f))
	complete.Register(cmd, "object", complete.AuditObjects(f))
}

// clientOptions converts the flags to options of the client.
func (l *logFlags) clientOptions(f *factory.Factory, cmd *cobra.Command) (client.AuditLogOptions, error) {
	// A namespace of the environment or of the context would hide what was done to the cluster.
	opts := client.AuditLogOptions{Subject: l.subject, Operation: l.operation, Namespace: f.NamespaceFlag}
	if err := factory.RefuseEmpty(cmd, "since", "until", "subject", "operation", "object"); err != nil {
		return opts, err
	}

	if l.object != "" {
		kind, name, ok := strings.Cut(l.object, "/")
		if !ok || kind == "" {
			return opts, failure.Usage("--object %s: is not KIND/NAME", task.Quote(l.object)).WithHint("for example --object task/report, or --object binding/ for all bindings")
		}
		opts.Kind, opts.Name = kind, name
	}

	var err error
	if opts.Since, err = f.ParseTime("since", l.since, f.Zone(output.ReaderZone), schedule.Past); err != nil {
		return opts, err
	}
	if opts.Until, err = f.ParseTime("until", l.until, f.Zone(output.ReaderZone), schedule.Past); err != nil {
		return opts, err
	}

	return opts, nil
}

// usualLimit is how many records a log shows unless another limit is given.
const usualLimit = 50

func logCommand(f *factory.Factory) *cobra.Command {
	var o logFlags
	limit := usualLimit
	cmd := &cobra.Command{
		Use:   "log",
		Short: "Show who changed what, the newest first",
		Long: "Show audit records: who changed what, when and from where. Each transaction of the API has one record, with the names\n" +
			"of changed fields. It has values only for roles, bindings, namespaces, node limits and tokens. The newest record comes\n" +
			"first.\n\n" +
			"Records are kept for 30 days. If all of them take more than 5 % of etcd's quota, the oldest records of the subjects with\n" +
			"the most are removed first. A line with the operation audit-gap says which records are missing.\n\n" +
			"Without read on audit, you see only changes of objects in namespaces whose bindings\n" +
			"you may read, and of bindings and tokens that apply only there. All namespaces are shown unless you use -n.",
		Example: `  carillon audit log
  carillon audit log --since 7d --subject user:ann
  carillon audit log -n billing --object task/invoices -o wide
  carillon audit log --operation delete-binding --limit 0`,
		Args: factory.Args(0, 0, ""), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if limit < 0 {
				return failure.Usage("--limit %d: must not be negative", limit)
			}

			opts, err := o.clientOptions(f, cmd)
			if err != nil {
				return err
			}
			if opts.Limit = limit; limit > 0 {
				opts.Limit++ // to know whether there are more
			}

			c, err := f.Connect()
			if err != nil {
				return err
			}

			var list []task.AuditRecord
			for r, err := range c.AuditLog.List(cmd.Context(), opts) {
				if err != nil {
					return err
				}
				list = append(list, r)
			}

			if limit > 0 && len(list) > limit {
				list = list[:limit]
				defer f.Note("note: there are older records; use --limit or --until %s", list[limit-1].Time.In(f.Zone(output.ReaderZone)).Format(time.RFC3339))
			}

			return output.EmitList(&f.Printer, list, func(r task.AuditRecord) string { return r.ID }, func(wide bool) *output.Table { return recordTable(f, list, wide) })
		},
	}
	o.defineFlags(f, cmd)
	cmd.Flags().IntVar(&limit, "limit", limit, "show at most `N` records (0: no limit)")

	return cmd
}

func recordTable(f *factory.Factory, list []task.AuditRecord, wide bool) *output.Table {
	g := &output.Table{Headers: []string{"TIME", "SUBJECT", "OPERATION", "OBJECTS", "NOTE"}, Empty: "no audit records that you may see"}
	if wide {
		g.Headers = append(g.Headers, "ADDRESS", "TOKEN", "CERTIFICATE", "NODE", "REVISION", "ID")
	}

	for _, r := range list {
		at := f.NoValue()
		if !r.Time.IsZero() {
			at = f.ExactTime(task.At(r.Time.Truncate(time.Second)), output.ReaderZone)
		}

		row := []string{at, output.OneLine(r.Subject), output.OneLine(r.Operation), objectsText(r.Objects, wide), noteText(f, r)}
		if r.Gap != nil {
			row[1], row[3] = cmp.Or(row[1], f.NoValue()), gapText(f, r.Gap)
		}
		if wide {
			row = append(row, output.OneLine(r.Address), output.OneLine(r.Token), output.OneLine(r.Certificate), output.OneLine(r.Node), fmt.Sprint(r.Revision), output.OneLine(r.ID))
		}
		g.AddRow(row...)
	}

	return g
}

// gapText describes the audit records that are missing.
func gapText(f *factory.Factory, g *task.AuditGap) string {
	what := "records"
	if g.Records > 0 {
		what = output.Plural(g.Records, "record")
	}
	if g.Access {
		what += " of access changes"
	}

	clock := func(t task.Time) string { return f.ExactTime(task.At(t.Truncate(time.Second)), output.ReaderZone) }

	switch g.Why {
	case task.GapAge:
		return fmt.Sprintf("%s until %s were removed: older than 30 days", what, clock(g.To))
	case task.GapSize:
		return fmt.Sprintf("%s from %s to %s were removed: the audit log took too much of etcd's quota", what, clock(g.From), clock(g.To))
	}

	return "the gap record cannot be read"
}

// objectsText names what a transaction changed: all of it, or as much as a line holds.
func objectsText(objects []task.AuditObject, all bool) string {
	const most = 2
	var words []string
	for i, o := range objects {
		if i == most && !all && len(objects) > most+1 {
			words = append(words, fmt.Sprintf("%d more", len(objects)-most))
			break
		}
		words = append(words, objectText(o))
	}

	return output.OneLine(strings.Join(words, "; "))
}

// objectText is one object, and what happened to it.
func objectText(o task.AuditObject) string {
	text := o.Kind
	if name := strings.Trim(o.Namespace+"/"+o.Name, "/"); name != "" {
		text += " " + name
	}
	if o.Run != "" {
		text += "@" + o.Run
	}
	if o.Kind == "freeze" && len(o.Namespaces) > 0 {
		text += " of namespace " + strings.Join(o.Namespaces, ", ")
	}

	switch {
	case o.Kind == "subject": // its record says only that it is disabled; the operation says which it was
	case o.Change == "delete":
		text += " deleted"
	case len(o.Fields) > 0:
		text += " (" + strings.Join(o.Fields, ", ") + ")"
	}

	if changes := changesText(o); changes != "" {
		text += ": " + changes
	}

	return text
}

// changesText says what a change of an access record gives or takes away: "role admin, subjects user:ann, cluster" for a new
// or a deleted record, and "run_as games → games, root" for a changed one.
func changesText(o task.AuditObject) string {
	var words []string
	for _, c := range o.Changes {
		// The uid of a role only distinguishes roles that had the same name. The note has the reason of a change.
		if strings.HasSuffix(c.Field, "role_uid") || c.Field == "reason" && o.Change == "put" {
			continue
		}

		from, to := valueText(c.From), valueText(c.To)
		switch {
		case c.From != nil && c.To != nil:
			words = append(words, c.Field+" "+from+" → "+to)
		case c.To != nil:
			words = append(words, strings.TrimSpace(c.Field+" "+to))
		case o.Change == "delete":
			words = append(words, strings.TrimSpace(c.Field+" "+from))
		default:
			words = append(words, strings.TrimSpace(c.Field+" "+from)+" → none")
		}
	}

	return strings.Join(words, ", ")
}

// valueText formats a value of an access record. It returns "" for true, which its field's name says alone.
func valueText(v any) string {
	switch v := v.(type) {
	case bool:
		if v {
			return ""
		}
		return "false"
	case []any:
		texts := make([]string, len(v))
		for i, item := range v {
			if texts[i] = ruleText(item); texts[i] == "" {
				texts[i] = valueText(item)
			}
		}
		return strings.Join(texts, ", ")
	}

	return strings.Join(wording.ValueLines(v), " ")
}

// ruleText formats a rule of a role as role create --rule takes it; "" if the value is not a rule.
func ruleText(v any) string {
	if _, isObject := v.(map[string]any); !isObject {
		return ""
	}

	var r task.Rule
	b, err := json.Marshal(v)
	if err == nil {
		err = json.Unmarshal(b, &r)
	}
	if err != nil || len(r.Verbs) == 0 {
		return ""
	}

	return view.RuleText(r)
}

// noteText is what else is worth knowing of a record.
func noteText(f *factory.Factory, r task.AuditRecord) string {
	var words []string
	if r.Outcome != "" && r.Outcome != task.AuditDone {
		words = append(words, f.Paint(output.Yellow, output.OneLine(r.Outcome)))
	}
	if r.Late {
		words = append(words, "written late")
	}
	if r.Reason != "" {
		words = append(words, output.OneLine(r.Reason))
	}

	return strings.Join(words, ": ")
}

func exportCommand(f *factory.Factory) *cobra.Command {
	var o logFlags
	cmd := factory.LimitFormats(&cobra.Command{
		Use:   "export",
		Short: "Print all audit records as JSON lines, the oldest first",
		Long: "Print audit records as JSON, one record a line, the oldest first, to store them elsewhere. To continue later, pass the\n" +
			"time of the last record to --since, and drop the records whose id you have already.",
		Example: "  carillon audit export > audit.jsonl\n  carillon audit export --since 2026-11-20T22:00:00Z | gzip > audit.jsonl.gz",
		Args:    factory.Args(0, 0, ""), ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			opts, err := o.clientOptions(f, cmd)
			if err != nil {
				return err
			}
			opts.OldestFirst = true

			c, err := f.Connect()
			if err != nil {
				return err
			}

			return exportRecords(cmd.Context(), f, c, opts)
		},
	}, output.FormatTable, output.FormatJSONL) // both are JSON lines
	o.defineFlags(f, cmd)

	return cmd
}

// exportRecords prints records as they arrive.
func exportRecords(ctx context.Context, f *factory.Factory, c *client.Client, opts client.AuditLogOptions) error {
	out := bufio.NewWriterSize(f.Out, 1<<16)
	n, last := 0, task.Time{}

	export := func() error {
		for r, err := range c.AuditLog.List(ctx, opts) {
			if err != nil {
				return err
			}

			line, err := output.CompactJSON(r)
			if err != nil {
				return err
			}
			if _, err := out.Write(append(line, '\n')); err != nil {
				return fmt.Errorf("write the output: %w", err)
			}

			n, last = n+1, r.Time
		}

		return nil
	}

	err := export()
	if flushed := out.Flush(); err == nil && flushed != nil {
		err = fmt.Errorf("write the output: %w", flushed)
	}
	if err != nil && n > 0 {
		f.Note("exported %s; go on with --since %s", output.Plural(int64(n), "record"), last.UTC().Format(time.RFC3339))
	}

	return err
}
