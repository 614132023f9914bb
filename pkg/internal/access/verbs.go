package access

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// Verb is something that a caller does. Verbs are bits, so that a set of them is one number.
type Verb uint16

// The verbs.
const (
	Read    Verb = 1 << iota
	Output       // read the output of runs
	Create       //
	Update       //
	Delete       //
	Trigger      // start a run of a task as it is
	Pause        // pause and resume
	Cancel       //
	Retry        // retry or dismiss a dead-letter run
	Use          // name a secret in a task
	Set          // write a secret's values
	Grant        // create and delete what gives rights
	Operate      // change nodes and settings of the cluster
	Backup       // read everything in etcd: never with a scoped token or a session

	allVerbs Verb = 1<<iota - 1
)

var verbNames = []string{"read", "output", "create", "update", "delete", "trigger", "pause", "cancel", "retry", "use", "set", "grant", "operate", "backup"}

// String lists the verbs, separated by commas.
func (v Verb) String() string {
	var names []string
	for rest := v & allVerbs; rest != 0; rest &= rest - 1 {
		names = append(names, verbNames[bits.TrailingZeros16(uint16(rest))])
	}

	return strings.Join(names, ", ")
}

// Kind is a kind of objects.
type Kind uint8

// The kinds of objects. Those from Namespaces on belong to the whole cluster.
const (
	Tasks      Kind = iota
	Runs            // of tasks; their labels are those of the task
	Secrets         //
	Bindings        // in one namespace, and tokens whose scope is that namespace
	Namespaces      // the records of namespaces
	Nodes           //
	Cluster         // settings, freezes, shards, members of etcd, record formats
	Access          // roles, users, tokens, and bindings of the cluster
	Audit           // audit records

	kinds
)

var kindNames = [kinds]string{"tasks", "runs", "secrets", "bindings", "namespaces", "nodes", "cluster", "access", "audit"}

// String is the kind's name in rules.
func (k Kind) String() string { return kindNames[k] }

// OfCluster reports whether objects of the kind belong to the whole cluster. They are
// granted only by bindings of the cluster.
func (k Kind) OfCluster() bool { return k >= Namespaces }

// Labelled reports whether objects of the kind have labels. A rule or binding with labels
// grants other kinds nothing.
func (k Kind) Labelled() bool { return k == Tasks || k == Runs }

// verbsOf are the verbs that mean something for each kind.
var verbsOf = [kinds]Verb{
	Tasks:      Read | Create | Update | Delete | Trigger | Pause,
	Runs:       Read | Output | Cancel | Pause | Retry,
	Secrets:    Read | Set | Delete | Use,
	Bindings:   Read | Grant,
	Namespaces: Read | Create | Update | Delete,
	Nodes:      Read | Operate,
	Cluster:    Read | Operate | Backup,
	Access:     Read | Grant,
	Audit:      Read,
}

// verbSet is a set of verbs for each kind.
type verbSet [kinds]Verb

func (s *verbSet) isEmpty() bool { return *s == verbSet{} }

// parseRule returns what a rule allows. It refuses verbs and kinds that do not exist, and
// a rule that allows nothing, such as one that gives trigger on secrets.
func parseRule(field string, r task.Rule) (verbSet, error) {
	var set verbSet

	verbs, err := parseVerbs(field+".verbs", r.Verbs)
	if err != nil {
		return set, err
	}

	objects, err := parseKinds(field+".objects", r.Objects)
	if err != nil {
		return set, err
	}

	if err := task.CheckLabels(field+".labels", r.Labels); err != nil {
		return set, err
	}

	for k := range kinds {
		if objects[k] && (len(r.Labels) == 0 || k.Labelled()) {
			set[k] = verbs & verbsOf[k]
		}
	}

	if set.isEmpty() {
		if len(r.Labels) > 0 {
			return set, task.Invalid(task.CodeBadValue, field, "allows nothing: only tasks and runs have labels, and none of the verbs applies to them")
		}

		return set, task.Invalid(task.CodeBadValue, field, "allows nothing: %s does not apply to %s", strings.Join(r.Verbs, ", "), strings.Join(r.Objects, ", "))
	}

	return set, nil
}

func parseVerbs(field string, names []string) (Verb, error) {
	if len(names) == 0 {
		return 0, task.Invalid(task.CodeRequired, field, "is empty; the verbs are %s, and * for all", strings.Join(verbNames, ", "))
	}

	var verbs Verb
	for _, name := range names {
		if name == "*" {
			return allVerbs, nil
		}

		i := slices.Index(verbNames, name)
		if i < 0 {
			return 0, task.Invalid(task.CodeBadValue, field, "%s is not a verb; the verbs are %s", task.Quote(name), strings.Join(verbNames, ", "))
		}

		verbs |= 1 << i
	}

	return verbs, nil
}

func parseKinds(field string, names []string) ([kinds]bool, error) {
	var set [kinds]bool
	if len(names) == 0 {
		return set, task.Invalid(task.CodeRequired, field, "is empty; the kinds of objects are %s, and * for all", strings.Join(kindNames[:], ", "))
	}

	for _, name := range names {
		if name == "*" {
			for k := range kinds {
				set[k] = true
			}

			return set, nil
		}

		i := slices.Index(kindNames[:], name)
		if i < 0 {
			return set, task.Invalid(task.CodeBadValue, field, "%s is not a kind of objects; the kinds are %s", task.Quote(name), strings.Join(kindNames[:], ", "))
		}

		set[i] = true
	}

	return set, nil
}

// index is the path of a list's element in an error.
func index(field string, i int) string { return fmt.Sprintf("%s[%d]", field, i) }

// VerbNames returns the names of all verbs.
func VerbNames() []string { return slices.Clone(verbNames) }

// KindNames returns the names of all kinds of objects. Those of namespaces come first.
func KindNames() []string { return slices.Clone(kindNames[:]) }

// VerbNames returns the names of the verbs that mean something for a kind.
func (k Kind) VerbNames() []string {
	var names []string
	for rest := verbsOf[k]; rest != 0; rest &= rest - 1 {
		names = append(names, verbNames[bits.TrailingZeros16(uint16(rest))])
	}

	return names
}

// ParseNeed returns the need for one verb on one kind of objects. It refuses verbs and kinds that do not exist, and a verb
// that means nothing for the kind.
func ParseNeed(verb, kind string) (Need, error) {
	verbs, err := parseVerbs("verb", []string{verb})
	if err != nil {
		return Need{}, err
	}
	if verb == "*" {
		return Need{}, task.Invalid(task.CodeBadValue, "verb", "name one verb, not *")
	}

	k := slices.Index(kindNames[:], kind)
	switch {
	case k < 0:
		_, err := parseKinds("kind", []string{kind})
		if err == nil {
			err = task.Invalid(task.CodeBadValue, "kind", "name one kind of objects, not *")
		}
		return Need{}, err
	case verbsOf[k]&verbs == 0:
		return Need{}, task.Invalid(task.CodeBadValue, "verb", "%s does not apply to %s; the verbs for them are %s", task.Quote(verb), kind, strings.Join(Kind(k).VerbNames(), ", "))
	}

	return Need{Verb: verbs, Kind: Kind(k)}, nil
}

// BuiltInUID is the uid of the roles that are part of Carillon.
const BuiltInUID = "builtin"

// The names of built-in roles that the code refers to.
const (
	RoleAdmin  = "admin"
	RoleViewer = "viewer"
)

// BuiltInRoles are the roles of every cluster. No record can replace or change them.
func BuiltInRoles() []task.Role {
	// What each role adds to the one above it.
	view := []task.Rule{{Verbs: []string{"read", "output"}, Objects: []string{"tasks", "runs"}}, {Verbs: []string{"read"}, Objects: []string{"secrets", "nodes", "cluster"}}}
	operate := append(view[:len(view):len(view)], task.Rule{Verbs: []string{"trigger", "pause", "cancel", "retry"}, Objects: []string{"tasks", "runs"}})
	edit := append(operate[:len(operate):len(operate)],
		task.Rule{Verbs: []string{"create", "update", "delete"}, Objects: []string{"tasks"}},
		task.Rule{Verbs: []string{"use", "set", "delete"}, Objects: []string{"secrets"}})
	administer := append(edit[:len(edit):len(edit)], task.Rule{Verbs: []string{"read", "grant"}, Objects: []string{"bindings"}})

	return []task.Role{
		builtIn(RoleViewer, "Reads tasks, runs and their output, and the names of secrets.", view),
		builtIn("operator", "What a viewer may do, and trigger, pause, resume, cancel, retry and dismiss.", operate),
		builtIn("editor", "What an operator may do, and create, change and delete tasks, and write and use secrets.", edit),
		builtIn("namespace-admin", "What an editor may do, and give these rights to others in the same namespaces.", administer),
		builtIn("auditor", "Reads everything, audit records and access included, but no output.", []task.Rule{{Verbs: []string{"read"}, Objects: []string{"*"}}}),
		builtIn("node-operator", "Drains, cordons and resumes nodes.", []task.Rule{{Verbs: []string{"read", "operate"}, Objects: []string{"nodes"}}, {Verbs: []string{"read"}, Objects: []string{"cluster"}}}),
		builtIn("backup", "Makes backups, which contain everything: with a token without a scope.", []task.Rule{{Verbs: []string{"backup"}, Objects: []string{"cluster"}}}),
		builtIn(RoleAdmin, "Everything.", []task.Rule{{Verbs: []string{"*"}, Objects: []string{"*"}}}),
	}
}

func builtIn(name, description string, rules []task.Rule) task.Role {
	return task.Role{Name: name, UID: BuiltInUID, Description: description, Rules: rules, BuiltIn: true}
}
