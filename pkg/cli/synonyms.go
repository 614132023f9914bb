package cli

import (
	"slices"

	"github.com/spf13/cobra"

	"github.com/carillonhq/carillon/pkg/cli/failure"
	"github.com/carillonhq/carillon/pkg/task"
)

// onHost are the commands that run a node or need its files. They exist only on Linux.
var onHost = []string{"carillon agent", "carillon backup", "carillon cluster join-token", "carillon dev", "carillon secret key", "carillon send-mail"}

// unknownCommand returns the error for an unknown subcommand, with the one that was probably meant.
func unknownCommand(cmd *cobra.Command, word string) error {
	if path := cmd.CommandPath() + " " + word; slices.Contains(onHost, path) {
		return &failure.Error{Exit: failure.ExitUsage, Problem: failure.Problem{Code: failure.CodeUsage, Message: path + " runs only on Linux"}}
	}

	hint := "see " + cmd.CommandPath() + " --help"
	if meant := meantCommand(cmd, word); meant != "" {
		hint = "did you mean: " + meant
	}

	return &failure.Error{Exit: failure.ExitUsage, Problem: failure.Problem{Code: failure.CodeUsage, Hint: hint,
		Message: "unknown command " + task.Quote(word) + " for " + cmd.CommandPath()}}
}

// meantCommand returns the command that a word after cmd means, or "". What a word means elsewhere comes before words that
// are spelled like it.
func meantCommand(cmd *cobra.Command, word string) string {
	if other := synonyms[cmd.CommandPath()][word]; other != "" {
		return other
	}

	names := wordsOf(cmd, (*cobra.Command).IsAvailableCommand)
	if cmd.HasParent() {
		for _, verb := range verbSynonyms[word] {
			if slices.ContainsFunc(cmd.Commands(), func(c *cobra.Command) bool { return c.Name() == verb && c.IsAvailableCommand() }) {
				return cmd.CommandPath() + " " + verb
			}
		}
	}

	if near := task.Nearest(word, names); near != "" {
		return cmd.CommandPath() + " " + near
	}
	if cmd.CommandPath() == "carillon run" && task.CheckName("", word) == nil && !isVerb(cmd.Root(), word) {
		return "carillon task trigger " + word // as other tools run something
	}

	return ""
}

// isVerb reports whether a word is a verb of any resource, or one of other tools.
func isVerb(root *cobra.Command, word string) bool {
	return verbSynonyms[word] != nil || slices.ContainsFunc(root.Commands(), func(noun *cobra.Command) bool {
		return slices.Contains(wordsOf(noun, (*cobra.Command).IsAvailableCommand), word)
	})
}

// verbSynonyms are the verbs of other tools for what is done to any resource, with the verbs of this one. Of these, the first
// that the resource has is meant.
var verbSynonyms = map[string][]string{
	"describe": {"get", "show", "explain"}, "show": {"get"}, "inspect": {"get", "show"}, "view": {"get", "show"}, "read": {"get"},
	"info": {"get", "status"}, "status": {"status", "get"}, "ls": {"list"},
	"create": {"set"}, "add": {"create", "set", "grant"}, "new": {"create", "set"}, "make": {"create"}, "issue": {"create"}, "put": {"set"}, "write": {"set"},
	"edit": {"update", "set"}, "update": {"set"}, "set": {"update"}, "patch": {"update"}, "modify": {"update"}, "change": {"update"},
	"rm": {"delete", "revoke"}, "remove": {"delete", "revoke"}, "purge": {"delete"}, "destroy": {"delete"}, "restore": {"undelete"}, "undo": {"rollback"}, "revert": {"rollback"},
	"clone": {"copy"}, "cp": {"copy"}, "duplicate": {"copy"}, "rename": {"copy"}, "mv": {"copy"},
	"enable": {"resume"}, "unpause": {"resume"}, "unsuspend": {"resume"}, "uncordon": {"resume"}, "undrain": {"resume"},
	"disable": {"pause", "cordon"}, "suspend": {"pause", "cordon"}, "run": {"trigger"}, "start": {"trigger"}, "exec": {"trigger"}, "dispatch": {"trigger"}, "force": {"trigger"},
	"stop": {"cancel"}, "kill": {"cancel"}, "restart": {"rerun"}, "log": {"logs"}, "output": {"logs"}, "runs": {"history"},
	"validate": {"lint"}, "check": {"lint"}, "test": {"next"}, "plan": {"diff"}, "watch": {"get"}, "wait": {"get"}, "mute": {"silence"}, "unmute": {"unsilence"},
}

// synonyms are the other words of kubectl, nomad, systemctl and schedulers for commands that have another name here, by the
// command to which they are given. Each names a whole command.
var synonyms = map[string]map[string]string{
	"carillon": {
		"get": "carillon task get", "describe": "carillon task get", "show": "carillon task get", "inspect": "carillon task get",
		"ls": "carillon task list", "list": "carillon task list", "jobs": "carillon task list", "cronjobs": "carillon task list", "job": "carillon task", "cronjob": "carillon task", "ps": "carillon run list",
		"status": "carillon cluster status", "info": "carillon cluster status", "health": "carillon cluster status", "system": "carillon cluster", "members": "carillon cluster members",
		"doctor": "carillon audit", "check": "carillon audit", "fsck": "carillon audit",
		"create": "carillon task create", "add": "carillon task create", "new": "carillon task create", "update": "carillon task update", "set": "carillon task update", "patch": "carillon task update",
		"edit": "carillon task edit", "copy": "carillon task copy", "cp": "carillon task copy", "clone": "carillon task copy", "rename": "carillon task copy", "mv": "carillon task copy",
		"delete": "carillon task delete", "rm": "carillon task delete", "remove": "carillon task delete", "undelete": "carillon task undelete", "restore": "carillon task undelete",
		"rollback": "carillon task rollback", "undo": "carillon task rollback", "revert": "carillon task rollback", "export": "carillon task export", "deploy": "carillon apply", "plan": "carillon diff",
		"run-now": "carillon task trigger", "start": "carillon task trigger", "trigger": "carillon task trigger", "exec": "carillon task trigger", "dispatch": "carillon task trigger",
		"stop": "carillon run cancel", "kill": "carillon run cancel", "cancel": "carillon run cancel", "retry": "carillon run retry", "rerun": "carillon run rerun", "restart": "carillon run rerun",
		"pause": "carillon task pause", "suspend": "carillon task pause", "disable": "carillon task pause", "resume": "carillon task resume", "enable": "carillon task resume", "history": "carillon task history",
		"drain": "carillon node drain", "cordon": "carillon node cordon", "uncordon": "carillon node resume", "silence": "carillon alert silence", "ack": "carillon alert ack",
		"freeze": "carillon cluster freeze", "unfreeze": "carillon cluster unfreeze", "server": "carillon agent", "daemon": "carillon agent",
		"validate": "carillon schedule lint", "lint": "carillon schedule lint", "explain": "carillon schedule explain", "crontab": "carillon import crontab",
		"can-i": "carillon access can", "can": "carillon access can", "grant": "carillon access grant", "users": "carillon access subjects", "user": "carillon access subjects",
		"context": "carillon config list", "use-context": "carillon config use",
	},
	"carillon task": {
		"stop": "carillon run cancel", "cancel": "carillon run cancel", "kill": "carillon run cancel", "logs": "carillon logs", "log": "carillon logs", "output": "carillon logs",
		"restart": "carillon run rerun", "rerun": "carillon run rerun", "retry": "carillon run retry", "import": "carillon import", "versions": "carillon task history",
		"validate": "carillon schedule lint", "lint": "carillon schedule lint", "check": "carillon schedule lint", "explain": "carillon schedule explain", "alerts": "carillon alert list",
	},
	"carillon run": {
		"start": "carillon task trigger", "create": "carillon task trigger", "trigger": "carillon task trigger", "status": "carillon run get", "history": "carillon task history",
	},
	"carillon node":     {"status": "carillon node list"},
	"carillon cluster":  {"show": "carillon cluster status", "get": "carillon cluster status", "health": "carillon cluster status", "nodes": "carillon node list", "peers": "carillon cluster members", "drain": "carillon node drain"},
	"carillon schedule": {"list": "carillon next"},
	"carillon config":   {"get": "carillon config show", "current-context": "carillon config show", "get-contexts": "carillon config list", "ls": "carillon config list", "use-context": "carillon config use", "set-context": "carillon config set"},
}

// wordsOf returns the names and aliases of the subcommands of cmd for which wanted returns true.
func wordsOf(cmd *cobra.Command, wanted func(*cobra.Command) bool) []string {
	var names []string
	for _, c := range cmd.Commands() {
		if wanted(c) {
			names = append(append(names, c.Name()), c.Aliases...)
		}
	}

	return names
}
