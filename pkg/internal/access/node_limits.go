package access

import (
	"maps"
	"slices"
	"strings"

	"github.com/carillonhq/carillon/pkg/task"
)

// unlimitedLabels are the labels that no limit needs to list. LimitNode makes sure that node is the node's name. The others
// describe the program that runs there; a host that lies about them harms only the runs that select hosts by them.
var unlimitedLabels = []string{"node", "os", "arch"}

// CheckNodeLimit checks a limit of nodes that somebody wants to write.
func CheckNodeLimit(l *task.NodeLimit) error {
	if err := checkPattern("name", l.Name); err != nil {
		return err
	}

	if len(l.Labels) > task.MaxNodeLimitLabels {
		return task.Invalid(task.CodeTooMany, "labels", "has %d entries; at most %d are allowed", len(l.Labels), task.MaxNodeLimitLabels)
	}

	for i, entry := range l.Labels {
		if entry == "*" {
			continue
		}

		field := index("labels", i)
		key, value, hasValue := strings.Cut(entry, "=")
		switch {
		case !hasValue:
			return task.Invalid(task.CodeBadLabel, field, "%s is not KEY=VALUE, KEY=* for any value, or * for any label", task.Quote(entry))
		case value == "*":
			value = ""
		case strings.Contains(value, "*"):
			return task.Invalid(task.CodeBadLabel, field, "%s: * stands for any value and must be the whole value", task.Quote(entry))
		}

		if err := task.CheckLabels(field, map[string]string{key: value}); err != nil {
			return err
		}
		if slices.Contains(l.Labels[:i], entry) {
			return task.Invalid(task.CodeBadValue, field, "%s is in the list twice", task.Quote(entry))
		}
	}

	return nil
}

// nodeLimits are the limits of nodes, by name.
type nodeLimits struct {
	all      []task.NodeLimit          // in the order of their names
	byName   map[string]*compiledLimit // those of single nodes
	byPrefix []prefixLimit             // the longest prefix first
}

type prefixLimit struct {
	prefix string
	*compiledLimit
}

// compiledLimit is a limit in the form in which it is asked.
type compiledLimit struct {
	name     string
	any      bool            // every label is allowed
	anyValue map[string]bool // by the key of a label
	exact    map[string]bool // by KEY=VALUE
}

func compileLimit(l task.NodeLimit) *compiledLimit {
	c := &compiledLimit{name: l.Name, anyValue: map[string]bool{}, exact: map[string]bool{}}
	for _, entry := range l.Labels {
		key, value, _ := strings.Cut(entry, "=")
		switch {
		case entry == "*":
			c.any = true
		case value == "*":
			c.anyValue[key] = true
		default:
			c.exact[entry] = true
		}
	}

	return c
}

// allows reports whether a node may have a label.
func (c *compiledLimit) allows(key, value string) bool {
	return c.any || c.anyValue[key] || slices.Contains(unlimitedLabels, key) || c.exact[key+"="+value]
}

// add adds a limit. One that does not make sense allows no labels.
func (n *nodeLimits) add(l task.NodeLimit) error {
	c := compileLimit(l)
	err := CheckNodeLimit(&l)
	if err != nil {
		c = compileLimit(task.NodeLimit{Name: l.Name})
	}

	n.all = append(n.all, l)
	if prefix, isPrefix := strings.CutSuffix(l.Name, "*"); isPrefix {
		n.byPrefix = append(n.byPrefix, prefixLimit{prefix, c})
		return err
	}

	if n.byName == nil {
		n.byName = map[string]*compiledLimit{}
	}
	n.byName[l.Name] = c

	return err
}

// sort puts the limits into the order in which they are listed and searched. It is called when all have been added.
func (n *nodeLimits) sort() {
	slices.SortFunc(n.all, func(a, b task.NodeLimit) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(n.byPrefix, func(a, b prefixLimit) int { return len(b.prefix) - len(a.prefix) })
}

// of returns the limit that applies to a node: that of its name, or else that of the longest prefix. It returns nil if
// there is none.
func (n *nodeLimits) of(name string) *compiledLimit {
	if c := n.byName[name]; c != nil {
		return c
	}

	for _, l := range n.byPrefix {
		if strings.HasPrefix(name, l.prefix) {
			return l.compiledLimit
		}
	}

	return nil
}

// NodeLimits returns the limits of nodes, in the order of their names.
func (t *Table) NodeLimits() []task.NodeLimit { return t.nodeLimits.all }

// NodeLimit returns the limit with exactly this name.
func (t *Table) NodeLimit(name string) (task.NodeLimit, bool) {
	i := slices.IndexFunc(t.nodeLimits.all, func(l task.NodeLimit) bool { return l.Name == name })
	if i < 0 {
		return task.NodeLimit{}, false
	}

	return t.nodeLimits.all[i], true
}

// LimitNode returns a node with only those of its labels that its limit allows. The others are in IgnoredLabels. It does not
// change the labels of the node that it is given.
//
// A node announces its labels itself. Code that compares them with a selector must ask LimitNode first: otherwise a
// compromised host receives the runs of any namespace whose selector it knows.
func (t *Table) LimitNode(n task.Node) task.Node {
	n.IgnoredLabels = nil
	limit := t.nodeLimits.of(n.Name)

	isLimited := func(key, value string) bool {
		return limit != nil && !limit.allows(key, value) || key == "node" && value != n.Name
	}

	for key, value := range n.Labels {
		if !isLimited(key, value) {
			continue
		}

		if n.IgnoredLabels == nil {
			n.IgnoredLabels = map[string]string{}
			n.Labels = maps.Clone(n.Labels)
		}
		n.IgnoredLabels[key] = value
		delete(n.Labels, key)
	}

	if _, ignored := n.IgnoredLabels["node"]; ignored {
		n.Labels["node"] = n.Name // what selectors of a single node rely on
	}

	return n
}

// LimitNodes is LimitNode for many nodes. It returns the list that it is given if no label is ignored.
func (t *Table) LimitNodes(nodes []task.Node) []task.Node {
	cloned := false
	for i := range nodes {
		n := t.LimitNode(nodes[i])
		if n.IgnoredLabels == nil && nodes[i].IgnoredLabels == nil {
			continue
		}

		if !cloned {
			nodes, cloned = slices.Clone(nodes), true
		}
		nodes[i] = n
	}

	return nodes
}

// IgnoredWith returns those nodes that announce labels which a limit would not allow if it existed. Nodes to which another
// limit applies are left out.
func (t *Table) IgnoredWith(l task.NodeLimit, nodes []task.Node) []task.Node {
	var with Table
	for _, other := range t.nodeLimits.all {
		if other.Name != l.Name {
			_ = with.nodeLimits.add(other) // Compile has reported what does not make sense
		}
	}
	_ = with.nodeLimits.add(l)
	with.nodeLimits.sort()

	var list []task.Node
	for _, n := range nodes {
		if of := with.nodeLimits.of(n.Name); of == nil || of.name != l.Name {
			continue
		}
		if n = with.LimitNode(n); n.IgnoredLabels != nil {
			list = append(list, n)
		}
	}

	return list
}
