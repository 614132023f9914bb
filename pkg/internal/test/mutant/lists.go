package mutant

import (
	"slices"

	"github.com/carillonhq/carillon/pkg/internal/readmodel"
)

// Asked is a question about tasks, and what the nodes have answered.
type Asked struct {
	Query  *readmodel.Query
	Shards int // of the cluster
	// First are the answers to the question, and Final those that count: nodes whose answers contain superseded shards
	// were asked once more without them.
	First, Final []readmodel.NodeAnswer
	// Opening are, by node, the shards that a node owns and does not answer for.
	Opening map[string][]readmodel.ShardAnswer
}

// Merge combines the answers as a node does.
func (a *Asked) Merge() readmodel.Page { return readmodel.Merge(a.Query, a.Shards, a.Final) }

// ListMutant breaks how the answers of nodes become a list. The simulation of lists judges the lists of all these mutants
// beside the real ones, so one simulation can catch all of them.
type ListMutant struct {
	Name string
	// Breaks describes the defect in one sentence.
	Breaks string
	// Chance is about which part of the simulations catches it. TestLists_AreNeverWrongAndComplete requires those that are
	// caught by most of them, and make sim also those that are caught by one in five.
	Chance float64
	Merge  func(a *Asked) readmodel.Page
}

// Lists lists the mutants of lists.
var Lists = []ListMutant{
	{"shard-twice", "a shard that moves is counted once for each node that answers for it", 0.9, shardTwice},
	{"missing-unsaid", "shards for which nobody answers are not named", 0.9, missingUnsaid},
	{"superseded-rows", "the rows of a superseded shard stay, only its count is dropped", 0.9, supersededRows},
	{"not-asked-again", "a node whose answer contains a superseded shard is not asked again", 0.05, notAskedAgain},
	{"answer-unloaded", "a node answers for a shard before it has loaded it", 0.9, answerUnloaded},
	{"always-current", "an answer does not say how long ago the owner has heard from its watch", 0.9, alwaysCurrent},
	{"history-unsaid", "an answer does not say that the owners still read how runs have ended", 0.5, historyUnsaid},
	{"page-skips", "the next page begins one task late", 0.9, pageSkips},
}

func shardTwice(a *Asked) readmodel.Page {
	var p readmodel.Page
	answered := map[int]bool{}

	for _, answer := range a.First {
		for _, s := range answer.Shards {
			answered[s.Shard] = true
			p.Counts.Add(s.Counts)
			p.AgeMS, p.Rows, p.Unread = max(p.AgeMS, s.AgeMS), p.Rows+s.Rows, p.Unread+s.Unread
		}
	}

	for shard := range a.Shards {
		if !answered[shard] {
			p.Missing = append(p.Missing, shard)
		}
	}

	p.Places, p.More = firstPlaces(a.Query, a.First)

	return p
}

// firstPlaces returns the first places of all answers, and whether further ones follow.
func firstPlaces(q *readmodel.Query, answers []readmodel.NodeAnswer) ([]readmodel.Place, bool) {
	first, more := readmodel.NewFirst(q), false
	for _, answer := range answers {
		more = more || answer.More
		for _, p := range answer.Places {
			first.Offer(p)
		}
	}

	return first.Sorted(), more || first.More
}

func missingUnsaid(a *Asked) readmodel.Page {
	p := a.Merge()
	p.Missing = nil

	return p
}

func supersededRows(a *Asked) readmodel.Page {
	p := a.Merge()
	p.Places, p.More = firstPlaces(a.Query, a.First)

	return p
}

func notAskedAgain(a *Asked) readmodel.Page {
	lost := readmodel.Superseded(a.First)
	kept := make([]readmodel.NodeAnswer, len(a.First))

	for i, answer := range a.First {
		isLost := func(shard int) bool { return slices.Contains(lost[answer.Node], shard) }
		answer.Shards = slices.DeleteFunc(slices.Clone(answer.Shards), func(s readmodel.ShardAnswer) bool { return isLost(s.Shard) })
		answer.Places = slices.DeleteFunc(slices.Clone(answer.Places), func(p readmodel.Place) bool { return isLost(p.Shard) })
		kept[i] = answer
	}

	return readmodel.Merge(a.Query, a.Shards, kept)
}

func answerUnloaded(a *Asked) readmodel.Page {
	answers := slices.Clone(a.Final)
	for i := range answers {
		answers[i].Shards = slices.Concat(answers[i].Shards, a.Opening[answers[i].Node])
	}

	// The former owner is asked again without these shards, as for any other node.
	for node, shards := range readmodel.Superseded(answers) {
		i := slices.IndexFunc(answers, func(answer readmodel.NodeAnswer) bool { return answer.Node == node })
		isLost := func(shard int) bool { return slices.Contains(shards, shard) }
		answers[i].Shards = slices.DeleteFunc(slices.Clone(answers[i].Shards), func(s readmodel.ShardAnswer) bool { return isLost(s.Shard) })
		answers[i].Places = slices.DeleteFunc(slices.Clone(answers[i].Places), func(p readmodel.Place) bool { return isLost(p.Shard) })
	}

	return readmodel.Merge(a.Query, a.Shards, answers)
}

func alwaysCurrent(a *Asked) readmodel.Page {
	p := a.Merge()
	p.AgeMS = 0

	return p
}

func historyUnsaid(a *Asked) readmodel.Page {
	p := a.Merge()
	p.Unread = 0

	return p
}

func pageSkips(a *Asked) readmodel.Page {
	p := a.Merge()
	if a.Query.After != nil && len(p.Places) > 0 {
		p.Places = p.Places[1:]
	}

	return p
}
