// The path is below Velero's, as that of ../policy-answers: what is asked is in its internal packages.
module github.com/vmware-tanzu/velero/restore-step-answers

go 1.26.0

require github.com/vmware-tanzu/velero v1.18.3

// As in ../mods/velero/go.mod.
replace (
	github.com/kopia/kopia => github.com/project-velero/kopia v0.0.0-20251230033609-d946b1e75197
	k8s.io/cli-runtime => k8s.io/cli-runtime v0.33.10
)
