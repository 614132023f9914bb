package factory

import "github.com/carillonhq/carillon/pkg/internal/backup/restore"

// RestoreHost returns what the settings of the agent of this host say, from its file.
type RestoreHost func(file string) (restore.Host, error)
