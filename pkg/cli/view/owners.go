package view

import (
	"github.com/carillonhq/carillon/pkg/cli/factory"
	"github.com/carillonhq/carillon/pkg/client"
	"github.com/carillonhq/carillon/pkg/internal/wording"
)

// NoteOwners prints what a reader must know of a list that the owners of shards have answered, below the list: how many
// tasks match if not all are listed, which shards are missing, how old the list is, and whether owners still collect how
// runs ended.
func NoteOwners(f *factory.Factory, info client.ListInfo, listed int) {
	if text := OwnersText(info, listed, f.ForPeople()); text != "" {
		f.Note("%s", text)
	}
}

// OwnersText is the text of NoteOwners; "" if there is nothing to say. Programs read how many tasks match elsewhere.
func OwnersText(info client.ListInfo, listed int, people bool) string {
	text := wording.MissingText(info)
	if n := info.Count; people && n != nil && *n > listed {
		count := wording.Grouped(*n) + " tasks"
		if text == "" {
			return count
		}
		return count + "; " + text
	}

	return text
}
