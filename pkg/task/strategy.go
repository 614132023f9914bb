package task

import (
	"fmt"
	"slices"
)

// The values of Target.Strategy: how a node is chosen for a run among those that match the selector and accept
// runs. The choice is made for each attempt when it is dispatched. docs/how-to/place.md describes what each
// strategy does when a node is gone, full or draining.
const (
	StrategyAuto        = "auto"         // the owner's own node if it has a free slot, otherwise the less loaded of two random nodes
	StrategyRoundRobin  = "round-robin"  // the next node in the order of names
	StrategyRandom      = "random"       // a random node, all with the same probability
	StrategyWeighted    = "weighted"     // a random node, with a probability in proportion to its weight
	StrategyLeastLoaded = "least-loaded" // the node with the smallest fraction of its slots in use, then the lowest load
	StrategyHash        = "hash"         // always the same node for a key, by rendezvous hashing
	StrategyFirst       = "first"        // the first available node in Target.Order
	StrategySticky      = "sticky"       // the node of the last run
)

// Strategies returns the values of Target.Strategy, the default first.
func Strategies() []string {
	f, _ := FindField(SpecFields(), "target.strategy")
	return slices.Clone(f.Enum)
}

// Ordered reports whether a strategy defines the order in which several chosen nodes get their parts. Otherwise
// it is the order of their names.
func Ordered(strategy string) bool {
	return strategy == StrategyRoundRobin || strategy == StrategyHash || strategy == StrategyFirst
}

// validateStrategy checks the strategy and the fields that belong to it.
func (t Target) validateStrategy() error {
	if t.Key != "" && t.Strategy != StrategyHash {
		return Invalid(CodeBadValue, "target.key", "requires strategy: hash, but strategy is %s", t.Strategy)
	}
	if err := checkCharacters("target.key", t.Key); err != nil {
		return err
	}

	switch {
	case len(t.Order) > 0 && t.Strategy != StrategyFirst:
		return Invalid(CodeBadValue, "target.order", "requires strategy: first, but strategy is %s", t.Strategy)
	case len(t.Order) == 0 && t.Strategy == StrategyFirst:
		return Invalid(CodeRequired, "target.order", "is required with strategy: first; list the nodes, the preferred node first")
	}

	for i, name := range t.Order {
		if err := CheckName(fmt.Sprintf("target.order[%d]", i), name); err != nil {
			return err
		}
	}

	return nil
}

// MovesRetries reports whether another attempt of a run avoids the node of the failed attempt. It does not with
// strategy sticky, or if each part has its own node.
func (t Target) MovesRetries() bool {
	hasNamedParts := t.FansOut() && t.Parts == 0

	return t.Strategy != StrategySticky && !hasNamedParts
}

// Takers returns the names of the nodes that accept runs now and match the target. If secret is set, they must
// also have a key for secrets. It returns nil if the selector cannot be parsed.
func (t Target) Takers(nodes []Node, secret bool) (names []string) {
	sel, err := ParseSelector(t.Selector)
	if err != nil {
		return nil
	}

	for i := range nodes {
		if n := &nodes[i]; n.Takes() && (!secret || n.HoldsKey()) && sel.Accepts(n) && (t.Strategy != StrategyFirst || slices.Contains(t.Order, n.Name)) {
			names = append(names, n.Name)
		}
	}

	return names
}
