package complete

import (
	"context"
	"strings"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/cli/output"
	"github.com/carillonhq/carillon/pkg/cli/view"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/access"
)

// Namespaces completes the namespaces that the caller may read.
func Namespaces(f *factory.Factory) Func {
	return ofCluster(f, "namespaces", func(ctx context.Context, c *client.Client) (offers []Offer, err error) {
		list, err := c.Namespaces.List(ctx)
		for _, n := range list {
			offers = append(offers, Offer{n.Name, output.OneLine(n.Description)})
		}
		return offers, err
	})
}

// Roles completes names of roles. Those who may not read roles are offered the built-in ones.
func Roles(f *factory.Factory) Func {
	return ofCluster(f, "roles", func(ctx context.Context, c *client.Client) (offers []Offer, err error) {
		list, err := c.Roles.List(ctx)
		if err != nil {
			list = access.BuiltInRoles()
		}
		for _, r := range list {
			offers = append(offers, Offer{r.Name, output.OneLine(r.Description)})
		}
		return offers, nil
	})
}

// OwnRoles is like Roles, without the built-in ones.
func OwnRoles(f *factory.Factory) Func {
	return ofCluster(f, "own-roles", func(ctx context.Context, c *client.Client) (offers []Offer, err error) {
		list, err := c.Roles.List(ctx)
		for _, r := range list {
			if !r.BuiltIn {
				offers = append(offers, Offer{r.Name, output.OneLine(r.Description)})
			}
		}
		return offers, err
	})
}

// Bindings completes names of bindings.
func Bindings(f *factory.Factory) Func {
	return ofCluster(f, "bindings", func(ctx context.Context, c *client.Client) (offers []Offer, err error) {
		list, err := c.Bindings.List(ctx, "")
		for _, b := range list {
			offers = append(offers, Offer{b.Name, output.OneLine(b.Role + " for " + strings.Join(b.Subjects, ", ") + " " + view.InWhere(b.Namespaces, b.Cluster))})
		}
		return offers, err
	})
}

// Tokens completes ids of tokens.
func Tokens(f *factory.Factory) Func {
	return ofCluster(f, "tokens", func(ctx context.Context, c *client.Client) (offers []Offer, err error) {
		list, err := c.Tokens.List(ctx, "")
		for _, t := range list {
			offers = append(offers, Offer{t.ID, output.OneLine(t.Subject + " " + t.Reason)})
		}
		return offers, err
	})
}

// Subjects completes subjects. Those who may not read access are offered themselves.
func Subjects(f *factory.Factory) Func {
	return ofCluster(f, "subjects", func(ctx context.Context, c *client.Client) (offers []Offer, err error) {
		list, err := c.Subjects.List(ctx)
		for _, s := range list {
			about := output.Plural(int64(len(s.Bindings)), "binding") + ", " + output.Plural(int64(s.Tokens), "token")
			if s.Disabled {
				about = "disabled, " + about
			}
			offers = append(offers, Offer{s.Subject, about})
		}

		if err != nil {
			var me client.WhoAmI
			if me, err = c.Access.WhoAmI(ctx); err == nil {
				offers = []Offer{{me.Subject, "you"}}
			}
		}

		return offers, err
	})
}

// ofCluster completes names that do not depend on the namespace.
func ofCluster(f *factory.Factory, kind string, look Lookup) Func {
	return func(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		everywhere := *f
		everywhere.AllNamespaces = true
		return Matching(Live(&everywhere, cmd, kind, look), done, typed)
	}
}

// At completes each argument of a command with its own function; the last function also those that follow.
func At(functions ...Func) Func {
	return func(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		at := min(len(done), len(functions)-1)
		if functions[at] == nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return functions[at](cmd, done, typed)
	}
}

// VerbsAndKinds completes a verb, and then the kinds of objects that it applies to.
func VerbsAndKinds(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	var offers []Offer
	switch len(done) {
	case 0:
		for _, v := range access.VerbNames() {
			offers = append(offers, Offer{Word: v})
		}
	case 1:
		for _, k := range access.KindNames() {
			if _, err := access.ParseNeed(done[0], k); err == nil {
				offers = append(offers, Offer{Word: k})
			}
		}
	}

	return Matching(offers, nil, typed)
}

// Rules completes a rule, VERBS:KINDS: the verb or the kind after the last comma.
func Rules(_ *cobra.Command, _ []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
	names := append(access.VerbNames(), "*")
	verbs, kinds, begun := strings.Cut(typed, ":")
	switch {
	case strings.Contains(kinds, ":"): // labels
		return nil, cobra.ShellCompDirectiveNoFileComp
	case begun:
		names = nil
		for _, k := range access.KindNames() {
			for v := range strings.SplitSeq(verbs, ",") {
				if _, err := access.ParseNeed(v, k); err == nil || v == "*" {
					names = append(names, k)
					break
				}
			}
		}
	}

	before := typed[:strings.LastIndexAny(typed, ",:")+1]
	var offers []Offer
	for _, name := range names {
		if !strings.Contains(","+strings.ReplaceAll(before, ":", ",")+",", ","+name+",") {
			offers = append(offers, Offer{Word: before + name})
		}
	}

	words, directive := Matching(offers, nil, typed)

	return words, directive | cobra.ShellCompDirectiveNoSpace
}

// auditKinds are the kinds of what an audit record is about.
var auditKinds = []string{"task", "run", "secret", "freeze", "node", "cluster", "member", "role", "binding", "namespace", "token", "subject"}

// AuditObjects completes KIND/NAME of an object that audit records are about; NAME only for tasks.
func AuditObjects(f *factory.Factory) Func {
	return func(cmd *cobra.Command, done []string, typed string) ([]cobra.Completion, cobra.ShellCompDirective) {
		if rest, ok := strings.CutPrefix(typed, "task/"); ok {
			words, directive := Tasks(f)(cmd, done, rest)
			for i := range words {
				words[i] = "task/" + words[i]
			}
			return words, directive
		}

		var offers []Offer
		for _, k := range auditKinds {
			offers = append(offers, Offer{Word: k + "/"})
		}

		words, directive := Matching(offers, nil, typed)

		return words, directive | cobra.ShellCompDirectiveNoSpace
	}
}
