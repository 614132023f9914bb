package importer

import "slices"

// KnownSettings returns the settings of units that the importer knows, by their section.
func KnownSettings() map[string][]string {
	return map[string][]string{
		"Service": slices.Concat(convertedInService, ignoredInService, impliesNoNewPrivileges),
		"Timer":   slices.Concat(convertedInTimer, ignoredInTimer),
		"Unit":    slices.Concat(dependsOnUnits, startsUnits, ignoredInUnit, []string{"ConditionPathExists", "AssertPathExists"}),
	}
}
