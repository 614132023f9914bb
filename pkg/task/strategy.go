package task

import (
	"fmt"
	"slices"
)

// How a node is chosen for a run among those that take runs and match the
// selector: Target.Strategy. The choice is made when the run starts, for each
// attempt anew. docs/how-to/place.md says what each does when a node is gone, full
// or draining.
const (
	StrategyAuto        = "auto"         // the owner's own node if it has a free slot, else the less loaded of two
	StrategyRoundRobin  = "round-robin"  // the next in the order of names
	StrategyRandom      = "random"       // each as likely as any other
	StrategyWeighted    = "weighted"     // at random, each by its weight
	StrategyLeastLoaded = "least-loaded" // the one with the least part of its slots taken, and the idler machine
	StrategyHash        = "hash"         // always the same one for a key, by rendezvous hashing
	StrategyFirst       = "first"        // the first of Target.Order
	StrategySticky      = "sticky"       // the one that had the last run
)

// Strategies are the values of Target.Strategy, the default first.
func Strategies() []string {
	return []string{StrategyAuto, StrategyRoundRobin, StrategyRandom, StrategyWeighted, StrategyLeastLoaded, StrategyHash, StrategyFirst, StrategySticky}
}

// Ordered reports whether a strategy puts the nodes in an order of its own, in which
// those that are chosen together get their parts; else it is that of their names.
func Ordered(strategy string) bool {
	return strategy == StrategyRoundRobin || strategy == StrategyHash || strategy == StrategyFirst
}

// MaxOrder is how many nodes Target.Order may name, and MaxKey how many bytes
// Target.Key may have.
const (
	MaxOrder = 100
	MaxKey   = 256
)

func (t Target) validateStrategy() error {
	if err := oneOf("target.strategy", t.Strategy, Strategies()...); err != nil {
		return err
	}
	if t.Key != "" && t.Strategy != StrategyHash {
		return Invalid(CodeBadValue, "target.key", "is for strategy: hash, and strategy is %s", t.Strategy)
	}
	if err := checkText("target.key", t.Key, MaxKey); err != nil {
		return err
	}

	switch {
	case len(t.Order) > 0 && t.Strategy != StrategyFirst:
		return Invalid(CodeBadValue, "target.order", "is for strategy: first, and strategy is %s", t.Strategy)
	case len(t.Order) == 0 && t.Strategy == StrategyFirst:
		return Invalid(CodeRequired, "target.order", "is required with strategy: first; it names nodes, the best first")
	case len(t.Order) > MaxOrder:
		return Invalid(CodeTooMany, "target.order", "has %d nodes; at most %d are allowed", len(t.Order), MaxOrder)
	}

	for i, name := range t.Order {
		field := fmt.Sprintf("target.order[%d]", i)
		if err := CheckName(field, name); err != nil {
			return err
		}
		if slices.Contains(t.Order[:i], name) {
			return Invalid(CodeBadValue, field, "%s is given twice", Quote(name))
		}
	}

	return nil
}

// MovesRetries reports whether another attempt of a run avoids the node on which the last one failed. It
// does not if the strategy is sticky, or if each part has a node of its own.
func (t Target) MovesRetries() bool {
	hasNamedParts := t.FansOut() && t.Parts == 0

	return t.Strategy != StrategySticky && !hasNamedParts
}

// Takers are the names of the nodes that take runs now and may have the task's, which
// read a secret, or do not; none if the selector cannot be read.
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
