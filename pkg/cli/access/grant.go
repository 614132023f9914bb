package access

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/complete"
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
	"github.com/carillonhq/carillon/pkg/task"
)

// grantFlags contains the flags of the command.
type grantFlags struct {
	name, until, reason string
	namespaces, labels  []string
	cluster             bool
}

func grantCommand(f *factory.Factory) *cobra.Command {
	var o grantFlags
	cmd := &cobra.Command{
		Use:   "grant ROLE SUBJECT... (--in NAMESPACE | --cluster)",
		Short: "Give a role to subjects",
		Long: "Give a role to subjects: user:NAME, service:NAME, cert:NAME, or group:PROVIDER/NAME for the members of a group at an\n" +
			"identity provider. The role applies in the namespaces of --in, or with --cluster in every namespace and to what\n" +
			"belongs to the whole cluster: nodes, settings, namespaces, access and audit records. You can give only what you\n" +
			"have yourself, and only as long.\n\n" +
			"With --label, the role applies only to tasks with these labels and to their runs. The subjects can still read all\n" +
			"tasks of the namespaces.",
		Example: `  carillon access grant editor user:ann --in billing
  carillon access grant operator user:ann user:bob --in 'team-a*' --until 8h --reason 'on call'
  carillon access grant editor service:ci --in billing --label env=dev
  carillon access grant viewer group:corp/staff --in 'team-a*'
  carillon access grant admin cert:ops --cluster`,
		Args:              factory.Args(2, -1, "a role and a subject"),
		ValidArgsFunction: complete.At(complete.Roles(f), complete.Subjects(f)),
		RunE: func(cmd *cobra.Command, words []string) error {
			if err := factory.RefuseEmpty(cmd, "until", "reason", "name"); err != nil {
				return err
			}

			b, err := newBinding(f, words[0], words[1:], o)
			if err != nil {
				return err
			}

			return grant(cmd.Context(), f, b)
		},
	}

	flags := cmd.Flags()
	flags.StringSliceVar(&o.namespaces, "in", nil, "give the role in these `NAMESPACES`: names, or prefixes that end in *")
	flags.BoolVar(&o.cluster, "cluster", false, "give the role in the whole cluster")
	flags.StringSliceVar(&o.labels, "label", nil, "give the role only for tasks with this label, as `KEY=VALUE`; may be repeated")
	flags.StringVar(&o.until, "until", "", "end at this `TIME`, or after a duration such as 8h or 30d (default: never)")
	flags.StringVar(&o.reason, "reason", "", "`TEXT` that says why")
	flags.StringVar(&o.name, "name", "", "`NAME` of the binding (default: from the role, the subjects and the namespaces)")
	complete.Register(cmd, "in", complete.Namespaces(f))

	return cmd
}

// newBinding makes a binding of the words and flags.
func newBinding(f *factory.Factory, role string, subjects []string, o grantFlags) (b task.Binding, err error) {
	namespaces := namespacesOf(f, o.namespaces)

	switch {
	case o.cluster && len(namespaces) > 0:
		return b, failure.Usage("--in and --cluster exclude each other: --cluster includes every namespace")
	case !o.cluster && len(namespaces) == 0:
		return b, failure.Usage("where? use --in NAMESPACE or --cluster")
	}

	b = task.Binding{Name: o.name, Role: role, Subjects: subjects, Namespaces: namespaces, Cluster: o.cluster, Reason: o.reason}
	if b.Until, err = f.ParseEnd("until", o.until, f.Zone(output.ReaderZone)); err != nil {
		return b, err
	}
	if b.Labels, err = factory.ParseLabels("label", o.labels); err != nil {
		return b, err
	}
	if b.Name == "" {
		b.Name = nameOf(b)
	}

	return b, task.CheckName("name", b.Name)
}

// maxNameScope is the length of a namespace beyond which its name leaves too little space in the name of a binding.
const maxNameScope = 100

// nameOf returns a name for a binding that the user did not name. It contains the role, the subject and the scope.
// Bindings that differ in one of these, or in their labels, have different names. The name of a binding in one namespace
// begins with the namespace and a dot, so that those who can grant roles only in this namespace may use it.
func nameOf(b task.Binding) string {
	scope := access.NameScope(b.Namespaces)
	text := b.Role + "-" + strings.Join(b.Subjects, "-")
	if scope != "" && len(scope) < maxNameScope {
		scope += "."
	} else if scope = ""; b.Cluster {
		text += "-cluster"
	} else {
		text += "-" + strings.Join(b.Namespaces, "-")
	}

	for _, k := range slices.Sorted(maps.Keys(b.Labels)) {
		text += "-" + k + "-" + b.Labels[k]
	}

	var name strings.Builder
	last := '-'
	for _, r := range strings.ReplaceAll(strings.ToLower(text), "*", "any") {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '_' {
			last = r
		} else if last != '-' {
			last = '-'
		} else {
			continue
		}
		name.WriteRune(last)
	}

	s := strings.Trim(name.String(), "-_")
	if space := task.MaxName - len(scope); len(s) > space {
		sum := sha256.Sum256([]byte(text))
		s = strings.Trim(s[:max(space-9, 0)]+"-"+hex.EncodeToString(sum[:4]), "-_")
	}

	return scope + s
}

// grant writes a binding. It succeeds if the binding exists already with the same contents.
func grant(ctx context.Context, f *factory.Factory, b task.Binding) error {
	c, err := f.Connect()
	if err != nil {
		return err
	}

	written, err := factory.RetryBusy(ctx, func() (task.Binding, error) { return c.Bindings.Put(ctx, b, client.Writing{Create: true}) })
	existed := false
	if errors.Is(err, task.ErrExists) {
		if written, existed = sameBinding(ctx, c, b); !existed {
			fail := f.Explain(err)
			fail.Hint = fmt.Sprintf("revoke it with carillon access revoke %s, or choose another name with --name", b.Name)
			return fail
		}
		err = nil
	}
	if err != nil {
		return explainGrant(f, err)
	}

	if !f.ForPeople() {
		return output.EmitOne(&f.Printer, written, written.Name, nil)
	}

	who := output.OneLine(strings.Join(b.Subjects, ", "))
	if existed {
		f.Say("%s %s %s already (binding %s)", who, hasRole(b), view.InWhere(b.Namespaces, b.Cluster), b.Name)
		return nil
	}

	f.Say("granted %s to %s %s (binding %s)", output.OneLine(b.Role), who, view.InWhere(b.Namespaces, b.Cluster), b.Name)
	if len(b.Labels) > 0 {
		f.Note("note: only for tasks with %s; the others can be read, too", output.Labels(b.Labels))
	}

	noteAfterGrant(ctx, f, c, b)

	return nil
}

func hasRole(b task.Binding) string {
	verb := "has"
	if len(b.Subjects) > 1 {
		verb = "have"
	}
	return verb + " the role " + output.OneLine(b.Role)
}

// sameBinding returns the binding of the same name if it gives the same.
func sameBinding(ctx context.Context, c *client.Client, b task.Binding) (task.Binding, bool) {
	old, err := c.Bindings.Get(ctx, b.Name)

	same := err == nil && old.Role == b.Role && old.Cluster == b.Cluster && slices.Equal(old.Subjects, b.Subjects) &&
		slices.Equal(old.Namespaces, b.Namespaces) && maps.Equal(old.Labels, b.Labels) && old.Until.Equal(b.Until.Time)

	return old, same
}

// explainGrant adds a hint to the error of a grant.
func explainGrant(f *factory.Factory, err error) error {
	fail := f.Explain(err)
	if fail.Field == "role" && fail.Hint == "" {
		fail.Hint = "carillon role list shows the roles"
	}
	return fail
}

// noteAfterGrant prints what is missing before the subjects can use what they were given. It says nothing about what it
// cannot find out.
func noteAfterGrant(ctx context.Context, f *factory.Factory, c *client.Client, b task.Binding) {
	ctx, cancel := context.WithTimeout(ctx, f.LookupTimeout)
	defer cancel()

	for _, ns := range b.Namespaces {
		if strings.HasSuffix(ns, "*") {
			continue
		}
		if _, err := c.Namespaces.Get(ctx, ns); errors.Is(err, task.ErrNotFound) {
			f.Note("note: there is no namespace %s yet; create it with: carillon namespace create %s", output.OneLine(ns), output.OneLine(ns))
		}
	}

	list, err := c.Subjects.List(ctx)
	if err != nil {
		return
	}

	for _, subject := range b.Subjects {
		i := slices.IndexFunc(list, func(s client.Subject) bool { return s.Subject == subject })
		switch {
		case i >= 0 && list[i].Disabled:
			f.Note("note: %s is disabled, and may do nothing until: carillon access enable %s", output.OneLine(subject), output.OneLine(subject))
		case i >= 0 && list[i].Tokens == 0 && !strings.HasPrefix(subject, "cert:") && !isOfProvider(subject):
			f.SayNext("carillon token create --for %s --until 30d", output.OneLine(subject))
		}
	}
}

// isOfProvider reports whether a subject signs in with an identity provider, or is a group of one: it needs no token.
func isOfProvider(subject string) bool {
	return strings.HasPrefix(subject, "group:") || strings.HasPrefix(subject, "user:") && strings.Contains(subject, "/")
}
