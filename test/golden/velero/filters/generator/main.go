// generator asks Velero's own packages which namespaces, resources and objects a backup takes, and prints questions and answers as
// JSON. The questions come from a fixed seed, so that another run prints the same.
package main

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand"
	"net/http"
	"net/http/httptest"
	"os"
	"sort"
	"strings"

	"github.com/sirupsen/logrus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"

	velerodiscovery "github.com/vmware-tanzu/velero/pkg/discovery"
	"github.com/vmware-tanzu/velero/pkg/util/collections"
)

var random = rand.New(rand.NewSource(20261125))

func pick(from []string) string { return from[random.Intn(len(from))] }

func some(from []string, max int) []string {
	list := []string{}
	for n := random.Intn(max + 1); n > 0; n-- {
		list = append(list, pick(from))
	}
	return list
}

func texts(errs []error) []string {
	list := []string{}
	for _, err := range errs {
		list = append(list, err.Error())
	}
	return list
}

type m = map[string]any

// What the server serves: the same documents are given to both sides.
type resource struct{ name, kind, singular, short, scope, verbs string }

const all = "create,delete,deletecollection,get,list,patch,update,watch"

type groupVersion struct {
	group, version, freshness string
	resources                 []resource
}

var served = []groupVersion{
	{"", "v1", "Current", []resource{
		{"bindings", "Binding", "binding", "", "Namespaced", "create"},
		{"configmaps", "ConfigMap", "configmap", "cm", "Namespaced", all},
		{"events", "Event", "event", "ev", "Namespaced", all},
		{"namespaces", "Namespace", "namespace", "ns", "Cluster", all},
		{"nodes", "Node", "node", "no", "Cluster", all},
		{"persistentvolumeclaims", "PersistentVolumeClaim", "persistentvolumeclaim", "pvc", "Namespaced", all},
		{"persistentvolumes", "PersistentVolume", "persistentvolume", "pv", "Cluster", all},
		{"pods", "Pod", "pod", "po", "Namespaced", all},
		{"secrets", "Secret", "secret", "", "Namespaced", all},
		{"serviceaccounts", "ServiceAccount", "serviceaccount", "sa", "Namespaced", all},
	}},
	{"extensions", "v1beta1", "Current", []resource{
		{"deployments", "Deployment", "deployment", "deploy", "Namespaced", all},
		{"ingresses", "Ingress", "", "ing", "Namespaced", all},
	}},
	{"apps", "v1", "Current", []resource{
		{"deployments", "Deployment", "deployment", "deploy", "Namespaced", all},
		{"statefulsets", "StatefulSet", "statefulset", "sts", "Namespaced", all},
	}},
	{"apps", "v1beta2", "Current", []resource{
		{"deployments", "Deployment", "deployment", "deploy", "Namespaced", all},
		{"olddeployments", "OldDeployment", "olddeployment", "", "Namespaced", all},
	}},
	{"events.k8s.io", "v1", "Current", []resource{{"events", "Event", "event", "ev", "Namespaced", all}}},
	{"authorization.k8s.io", "v1", "Current", []resource{{"subjectaccessreviews", "SubjectAccessReview", "subjectaccessreview", "", "Cluster", "create"}}},
	{"networking.k8s.io", "v1", "Current", []resource{
		{"ingresses", "Ingress", "ingress", "ing", "Namespaced", all},
		{"networkpolicies", "NetworkPolicy", "networkpolicy", "netpol", "Namespaced", all},
	}},
	{"rbac.authorization.k8s.io", "v1", "Current", []resource{
		{"clusterrolebindings", "ClusterRoleBinding", "clusterrolebinding", "", "Cluster", all},
		{"clusterroles", "ClusterRole", "clusterrole", "", "Cluster", all},
	}},
	{"storage.k8s.io", "v1", "Current", []resource{{"storageclasses", "StorageClass", "storageclass", "sc", "Cluster", all}}},
	{"storage.k8s.io", "v1beta1", "Current", []resource{
		{"storageclasses", "StorageClass", "storageclass", "sc", "Cluster", all},
		{"csistoragecapacities", "CSIStorageCapacity", "csistoragecapacity", "", "Namespaced", all},
	}},
	{"apiextensions.k8s.io", "v1", "Current", []resource{{"customresourcedefinitions", "CustomResourceDefinition", "customresourcedefinition", "crd,crds", "Cluster", all}}},
	{"snapshot.storage.k8s.io", "v1", "Current", []resource{
		{"volumesnapshots", "VolumeSnapshot", "volumesnapshot", "vs", "Namespaced", all},
		{"volumesnapshotcontents", "VolumeSnapshotContent", "volumesnapshotcontent", "vsc,vscs", "Cluster", all},
	}},
	{"stable.example.com", "v1", "Current", []resource{{"events", "Event", "event", "", "Namespaced", all}, {"volumesnapshots", "VolumeSnapshot", "volumesnapshot", "vs", "Cluster", all}}},
	{"metrics.k8s.io", "v1beta1", "Stale", []resource{{"pods", "PodMetrics", "", "", "Namespaced", all}}},
	{"read.example.com", "v1", "Current", []resource{{"views", "View", "view", "vw", "Namespaced", "get,list"}}},
}

func split(list string) []string {
	if list == "" {
		return nil
	}
	return strings.Split(list, ",")
}

// document is the aggregated discovery (KEP-3352) of the core group or of the others.
func document(isCore bool) m {
	items := []m{}
	for _, gv := range served {
		if (gv.group == "") != isCore {
			continue
		}
		resources := []m{}
		for _, r := range gv.resources {
			resources = append(resources, m{
				"resource": r.name, "singularResource": r.singular, "scope": r.scope, "shortNames": split(r.short), "verbs": split(r.verbs),
				"responseKind": m{"group": gv.group, "version": gv.version, "kind": r.kind},
			})
		}
		version := m{"version": gv.version, "freshness": gv.freshness, "resources": resources}
		if n := len(items); n > 0 && items[n-1]["metadata"].(m)["name"] == gv.group {
			items[n-1]["versions"] = append(items[n-1]["versions"].([]m), version)
			continue
		}
		items = append(items, m{"metadata": m{"name": gv.group}, "versions": []m{version}})
	}
	return m{"kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "items": items}
}

func helper(log logrus.FieldLogger) velerodiscovery.Helper {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body any
		switch r.URL.Path {
		case "/api", "/apis":
			w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
			body = document(r.URL.Path == "/api")
		case "/version":
			w.Header().Set("Content-Type", "application/json")
			body = m{"major": "1", "minor": "36", "gitVersion": "v1.36.0"}
		default:
			http.NotFound(w, r)
			return
		}
		_ = json.NewEncoder(w).Encode(body)
	}))
	client, err := discovery.NewDiscoveryClientForConfig(&rest.Config{Host: server.URL})
	if err != nil {
		panic(err)
	}
	made, err := velerodiscovery.NewHelper(client, log)
	if err != nil {
		panic(err)
	}
	return made
}

func main() {
	log := logrus.New()
	log.SetOutput(io.Discard)
	known := helper(log)
	out := m{
		"types": types(), "core": document(true), "named": document(false), "lists": lists(known), "names": names(known), "globs": globs(),
		"namespaces": namespaces(), "old": old(known, log), "scoped": scoped(known, log), "validation": validation(), "selectors": selectors(),
	}
	encoder := json.NewEncoder(os.Stdout)
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(out); err != nil {
		panic(err)
	}
}

// Within one group Velero's order is random: it is sorted here.
func lists(known velerodiscovery.Helper) []m {
	found := []m{}
	for _, list := range known.Resources() {
		names := []string{}
		for _, r := range list.APIResources {
			names = append(names, r.Name)
		}
		if len(names) == 0 {
			continue
		}
		sort.Strings(names)
		found = append(found, m{"groupVersion": list.GroupVersion, "resources": names})
	}
	return found
}

func types() []string {
	list := []string{}
	for _, gv := range served {
		for _, r := range gv.resources {
			name := r.name
			if gv.group != "" {
				name += "." + gv.group
			}
			list = append(list, name)
		}
	}
	return list
}

func names(known velerodiscovery.Helper) []m {
	asked := append(types(), "po", "pod", "Pod", "PODS", "cm", "CM", "sc", "sc.storage", "storageclass", "StorageClass.storage", "deploy", "deploy.apps",
		"deploy.app", "deployment.a", "ev", "ev.events", "event.stable", "vs", "vs.stable", "vs.snapshot", "vsc", "crd", "crds", "customresourcedefinition.apiextensions",
		"nothing", "nothing.at.all", "pods.", ".pods", "pods/status", "*", "ing", "ingress", "ingress.networking.k8s.io", "ingresses.extensions", "podmetrics", "pods.metrics",
		"view", "vw", "olddeployments", "olddeployments.apps", "csistoragecapacity", "event", "events.", "netpol.networking", "podlist", "sts.apps.v1")
	found := []m{}
	for _, name := range asked {
		gvr, r, err := known.ResourceFor(parse(name))
		answer := m{"name": name}
		if err == nil {
			answer["found"] = fmt.Sprintf("%s/%s/%s", gvr.Group, gvr.Version, gvr.Resource)
			answer["namespaced"] = r.Namespaced
		}
		found = append(found, answer)
	}
	return found
}

var namespaceNames = []string{"a", "app-1", "app-10", "app-2", "default", "kube-system", "prod-db", "prod-web", "test", "velero", "x.y"}

var globPatterns = []string{"*", "?", "app-*", "app-?", "*-db", "prod-[dw]*", "[a-c]", "[!a]*", "app-[0-9]", "app-1", "a*1", "*a*", "{app,prod}-*", "pro\\d-db", "**", "", "x.?", "[^a]*", "a[", "*.k8s.io", "pods", "[]", "app-[12]", "[a-", "{a,b", "a}", "[!a-c]*", "a,b", "\\*", "{,a}pp-1", "[ab][!c-x]*"}

func globs() []m {
	found := []m{}
	asked := append(append([]string{}, namespaceNames...), "b", "*", "pods", "storageclasses.storage.k8s.io", "*.k8s.io", "pp-1", "]", "^", "a[", "prod-db-x", "a,b", "a}")
	for _, pattern := range globPatterns {
		taken := []string{}
		for _, name := range asked {
			if !collections.NewIncludesExcludes().Excludes(pattern).ShouldInclude(name) {
				taken = append(taken, name)
			}
		}
		found = append(found, m{"pattern": pattern, "names": asked, "taken": taken})
	}
	return found
}

var namespacePatterns = append([]string{"*", "app-*", "app-?", "prod-[dw]*", "*", "gone", "a**", "[", "a|b", "no*thing", "x.y", "[!a]*", "app-[0-9]"}, namespaceNames...)

func active() []string {
	list := []string{}
	for _, name := range namespaceNames {
		if random.Intn(4) > 0 {
			list = append(list, name)
		}
	}
	return list
}

func namespaceFilter(active, includes, excludes []string) *collections.NamespaceIncludesExcludes {
	return collections.NewNamespaceIncludesExcludes().ActiveNamespaces(active).Includes(includes...).Excludes(excludes...)
}

func namespaces() []m {
	found := []m{}
	for i := 0; i < 400; i++ {
		existing, includes, excludes := active(), some(namespacePatterns, 3), some(namespacePatterns, 2)
		if i%7 == 0 {
			includes = existing
		}
		filter := namespaceFilter(existing, includes, excludes)
		answer := m{"active": existing, "includes": includes, "excludes": excludes}
		if err := filter.ExpandIncludesExcludes(true); err != nil {
			answer["error"] = err.Error()
			found = append(found, answer)
			continue
		}
		answer["everything"] = filter.IncludeEverything()
		taken := []string{}
		for _, name := range append(append([]string{}, namespaceNames...), "*", "other") {
			if filter.ShouldInclude(name) {
				taken = append(taken, name)
			}
		}
		answer["taken"] = taken
		resolved, err := filter.ResolveNamespaceList(true)
		if err != nil {
			panic(err)
		}
		answer["resolved"] = resolved
		found = append(found, answer)
	}
	return found
}

var written = []string{"*", "pods", "po", "Pod", "cm", "deployments", "deployments.apps", "deploy.apps", "events", "ev", "namespaces", "ns", "nodes", "pv", "pvc", "sc", "storageclasses.storage.k8s.io",
	"crd", "vs", "volumesnapshotcontents.snapshot.storage.k8s.io", "nothing", "*.k8s.io", "persistent*", "secrets", "clusterroles.rbac.authorization.k8s.io", "[pn]o*", "*s"}

// asked gives one digit for each of types().
func asked(filter collections.IncludesExcludesInterface) m {
	digit := map[bool]string{false: "0", true: "1"}
	included, excluded := "", ""
	for _, name := range types() {
		included += digit[filter.ShouldInclude(name)]
		excluded += digit[filter.ShouldExclude(name)]
	}
	return m{"included": included, "excluded": excluded}
}

func withNamespaces(answer m) *collections.NamespaceIncludesExcludes {
	existing, includes, excludes := namespaceNames, []string{"*"}, []string{}
	switch random.Intn(3) {
	case 0:
		includes = []string{"app-1"}
	case 1:
		if random.Intn(2) == 0 {
			excludes = []string{"velero"}
		}
	}
	answer["namespaces"] = m{"active": existing, "includes": includes, "excludes": excludes}
	filter := namespaceFilter(existing, includes, excludes)
	if err := filter.ExpandIncludesExcludes(true); err != nil {
		panic(err)
	}
	return filter
}

func old(known velerodiscovery.Helper, log logrus.FieldLogger) []m {
	found := []m{}
	for i := 0; i < 200; i++ {
		includes, excludes := some(written, 3), some(written, 2)
		var cluster *bool
		answer := m{"includes": includes, "excludes": excludes}
		if n := random.Intn(3); n > 0 {
			value := n == 1
			cluster = &value
			answer["cluster"] = value
		}
		filter := withNamespaces(answer)
		for key, value := range asked(collections.GetGlobalResourceIncludesExcludes(known, log, includes, excludes, cluster, *filter)) {
			answer[key] = value
		}
		found = append(found, answer)
	}
	return found
}

func scoped(known velerodiscovery.Helper, log logrus.FieldLogger) []m {
	found := []m{}
	for i := 0; i < 300; i++ {
		lists := [4][]string{some(written, 2), some(written, 2), some(written, 2), some(written, 2)}
		for n := range lists {
			if random.Intn(3) == 0 {
				lists[n] = []string{}
			}
		}
		answer := m{"lists": lists}
		filter := withNamespaces(answer)
		made := collections.GetScopeResourceIncludesExcludes(known, log, lists[0], lists[1], lists[2], lists[3], *filter)
		if random.Intn(3) == 0 {
			combine(made, answer)
		}
		for key, value := range asked(made) {
			answer[key] = value
		}
		found = append(found, answer)
	}
	return found
}

func validation() []m {
	from := append([]string{"*", "", "A", "-x", "a_b", strings.Repeat("n", 64), "kube:x"}, namespacePatterns...)
	found := []m{}
	for i := 0; i < 250; i++ {
		includes, excludes := some(from, 3), some(from, 2)
		found = append(found, m{
			"includes": includes, "excludes": excludes,
			"plain":      texts(collections.ValidateIncludesExcludes(includes, excludes)),
			"namespaces": texts(collections.ValidateNamespaceIncludesExcludes(includes, excludes)),
			"scoped":     texts(collections.ValidateScopedIncludesExcludes(includes, excludes)),
		})
	}
	return found
}

func selectors() []m {
	keys, values := []string{"app", "tier", "example.com/part", "bad key", "", "a/b/c"}, []string{"web", "db", "", "x", "bad value", strings.Repeat("v", 64)}
	operators := []metav1.LabelSelectorOperator{"In", "NotIn", "Exists", "DoesNotExist", "Near"}
	common := func(list []string) string {
		if random.Intn(8) > 0 {
			return list[random.Intn(3)]
		}
		return pick(list)
	}
	found := []m{}
	for i := 0; i < 300; i++ {
		selector := metav1.LabelSelector{}
		for n := random.Intn(3); n > 0; n-- {
			if selector.MatchLabels == nil {
				selector.MatchLabels = map[string]string{}
			}
			selector.MatchLabels[common(keys)] = common(values)
		}
		for n := random.Intn(3); n > 0; n-- {
			requirement := metav1.LabelSelectorRequirement{Key: common(keys), Operator: operators[random.Intn(4)]}
			if random.Intn(15) == 0 {
				requirement.Operator = "Near"
			}
			count := 0
			if requirement.Operator == "In" || requirement.Operator == "NotIn" {
				count = 1 + random.Intn(2)
			}
			if random.Intn(12) == 0 {
				count = 1 - min(count, 1)
			}
			for ; count > 0; count-- {
				requirement.Values = append(requirement.Values, common(values))
			}
			selector.MatchExpressions = append(selector.MatchExpressions, requirement)
		}
		answer := m{"selector": selector}
		made, err := metav1.LabelSelectorAsSelector(&selector)
		if err != nil {
			answer["error"] = err.Error()
		} else {
			answer["text"] = made.String()
			sets := []m{}
			for n := 0; n < 4; n++ {
				set := labels.Set{}
				for k := random.Intn(3); k > 0; k-- {
					set[keys[random.Intn(3)]] = values[random.Intn(4)]
				}
				sets = append(sets, m{"labels": set, "matches": made.Matches(set)})
			}
			answer["sets"] = sets
		}
		found = append(found, answer)
	}
	return found
}
