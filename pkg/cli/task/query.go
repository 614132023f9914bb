package task

import (
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// termFlag is the hidden flag that holds the terms of a query that begin with a minus sign; see ProtectTerms.
const termFlag = "term"

// bindTerms declares the hidden flag for terms of a query.
func bindTerms(cmd *cobra.Command) {
	cmd.Flags().StringArray(termFlag, nil, "a `TERM` of the query")
	_ = cmd.Flags().MarkHidden(termFlag) // the flag exists
}

// negatedTerm matches the beginning of a term that is negated, such as -state:failed.
var negatedTerm = regexp.MustCompile(`^-[a-z]{4,}[:~]`)

// ProtectTerms returns the words of a command line in which terms of a query such as -state:failed, which look like
// flags, are values of a hidden flag, if the command takes a query.
func ProtectTerms(root *cobra.Command, args []string) []string {
	if !slices.ContainsFunc(args, negatedTerm.MatchString) {
		return args
	}

	cmd, _, err := root.Find(args)
	if err != nil || cmd.Flags().Lookup(termFlag) == nil {
		return args
	}

	out := slices.Clone(args)
	for i, word := range out {
		if word == "--" {
			break
		}
		if negatedTerm.MatchString(word) {
			out[i] = "--" + termFlag + "=" + word
		}
	}

	return out
}

// splitQuery returns the words of a command line as names and globs, or as a query: if one of them has a colon, a tilde
// or a space, which no name has, all together are one.
func splitQuery(cmd *cobra.Command, words []string) (names []string, query string) {
	terms, _ := cmd.Flags().GetStringArray(termFlag) // the flag is declared
	isTerm := func(w string) bool { return strings.ContainsAny(w, ":~ ") }
	if len(terms) == 0 && !slices.ContainsFunc(words, isTerm) {
		return words, ""
	}

	return nil, strings.Join(slices.Concat(words, terms), " ")
}
