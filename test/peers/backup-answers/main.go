// backup-answers says what Velero's own backup actions and item block actions make of objects. It reads lines of JSON from stdin, each an
// action, an object, a Backup and what the cluster has; each gets one line of JSON.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"sort"
	"strings"
	"time"

	snapshots "github.com/kubernetes-csi/external-snapshotter/client/v8/apis/volumesnapshot/v1"
	"github.com/sirupsen/logrus"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	crclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	v1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v1"
	v2alpha1 "github.com/vmware-tanzu/velero/pkg/apis/velero/v2alpha1"
	"github.com/vmware-tanzu/velero/pkg/backup/actions"
	"github.com/vmware-tanzu/velero/pkg/backup/actions/csi"
	"github.com/vmware-tanzu/velero/pkg/client"
	"github.com/vmware-tanzu/velero/pkg/discovery"
	blocks "github.com/vmware-tanzu/velero/pkg/itemblock/actions"
	"github.com/vmware-tanzu/velero/pkg/plugin/velero"
	"github.com/vmware-tanzu/velero/pkg/util/actionhelpers"
)

type question struct {
	Kind     string
	Action   string
	Item     map[string]any
	Backup   v1.Backup
	Bindings []rbacv1.ClusterRoleBinding
	Objects  []map[string]any
	// Versions of apiextensions.k8s.io that the cluster serves.
	Versions []string
	// What the driver makes of a VolumeSnapshot.
	Cut         *snapshots.VolumeSnapshotContentStatus
	OperationID string
}

type identifier struct {
	Group     string `json:"group"`
	Resource  string `json:"resource"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

type progress struct {
	Completed      bool   `json:"completed"`
	Err            string `json:"err"`
	NCompleted     int64  `json:"nCompleted"`
	NTotal         int64  `json:"nTotal"`
	OperationUnits string `json:"operationUnits"`
	Description    string `json:"description"`
	Started        string `json:"started,omitempty"`
}

type answer struct {
	Error           string         `json:"error,omitempty"`
	Item            map[string]any `json:"item,omitempty"`
	AdditionalItems []identifier   `json:"additionalItems,omitempty"`
	OperationID     string         `json:"operationId,omitempty"`
	ItemsToUpdate   []identifier   `json:"itemsToUpdate,omitempty"`
	RelatedItems    []identifier   `json:"relatedItems,omitempty"`
	Progress        *progress      `json:"progress,omitempty"`
	// What the cluster has of the kinds that actions make or change.
	Snapshots []any `json:"snapshots,omitempty"`
	Contents  []any `json:"contents,omitempty"`
	Uploads   []any `json:"uploads,omitempty"`
}

func main() {
	log := logrus.New()
	log.SetOutput(io.Discard)
	lines := bufio.NewReaderSize(os.Stdin, 1<<20)
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	for {
		text, err := lines.ReadBytes('\n')
		if err == io.EOF && len(text) == 0 {
			return
		}
		var q question
		must(json.Unmarshal(text, &q))
		bytes, err := json.Marshal(ask(q, log))
		must(err)
		out.Write(append(bytes, '\n'))
	}
}

func ask(q question, log *logrus.Logger) (result answer) {
	defer func() {
		if cause := recover(); cause != nil {
			result = answer{Error: fmt.Sprint("panic: ", cause)}
		}
	}()
	cluster := clusterOf(q)
	item := &unstructured.Unstructured{Object: numbers(q.Item).(map[string]any)}
	if q.Kind == "ItemBlockAction" {
		related, err := openBlock(q, cluster, log).GetRelatedItems(item, &q.Backup)
		return answer{Error: textOf(err), RelatedItems: identifiers(related)}
	}
	switch action := open(q, cluster, log).(type) {
	case first:
		updated, additional, err := action.Execute(item, &q.Backup)
		result = answer{Error: textOf(err), AdditionalItems: identifiers(additional)}
		if err == nil {
			result.Item = updated.UnstructuredContent()
		}
	case second:
		if q.OperationID != "" {
			told, err := action.Progress(q.OperationID, &q.Backup)
			result = answer{Error: textOf(err), Progress: &progress{
				told.Completed, told.Err, told.NCompleted, told.NTotal, told.OperationUnits, told.Description, "",
			}}
			if !told.Started.IsZero() {
				result.Progress.Started = told.Started.UTC().Format(time.RFC3339)
			}
			return result
		}
		updated, additional, operation, toUpdate, err := action.Execute(item, &q.Backup)
		result = answer{
			Error: textOf(err), AdditionalItems: identifiers(additional), OperationID: untimed(operation), ItemsToUpdate: identifiers(toUpdate),
		}
		if updated != nil {
			result.Item = updated.UnstructuredContent()
			// That of the cluster here says nothing.
			unstructured.RemoveNestedField(result.Item, "metadata", "resourceVersion")
		}
		result.Snapshots = all(cluster, &snapshots.VolumeSnapshotList{})
		result.Contents = all(cluster, &snapshots.VolumeSnapshotContentList{})
		result.Uploads = all(cluster, &v2alpha1.DataUploadList{})
	}
	return result
}

type first interface {
	Execute(runtime.Unstructured, *v1.Backup) (runtime.Unstructured, []velero.ResourceIdentifier, error)
}

type second interface {
	Execute(runtime.Unstructured, *v1.Backup) (runtime.Unstructured, []velero.ResourceIdentifier, string, []velero.ResourceIdentifier, error)
	Progress(string, *v1.Backup) (velero.OperationProgress, error)
}

type block interface {
	GetRelatedItems(runtime.Unstructured, *v1.Backup) ([]velero.ResourceIdentifier, error)
}

func open(q question, cluster crclient.Client, log *logrus.Logger) any {
	var action any
	var err error
	switch q.Action {
	case "velero.io/pod":
		action = actions.NewPodAction(log)
	case "velero.io/pv":
		action = actions.NewPVCAction(log)
	case "velero.io/service-account":
		action, err = actions.NewServiceAccountAction(log, listers(q), served{versions: q.Versions})
	case "velero.io/crd-remap-version":
		action = actions.NewRemapCRDVersionAction(log, nil, served{versions: q.Versions})
	case "velero.io/csi-pvc-backupper":
		action, err = csi.NewPvcBackupItemAction(factory{cluster: cluster})(log)
	case "velero.io/csi-volumesnapshot-backupper":
		action, err = csi.NewVolumeSnapshotBackupItemAction(factory{cluster: cluster})(log)
	case "velero.io/csi-volumesnapshotcontent-backupper":
		action, err = csi.NewVolumeSnapshotContentBackupItemAction(log)
	case "velero.io/csi-volumesnapshotclass-backupper":
		action, err = csi.NewVolumeSnapshotClassBackupItemAction(log)
	default:
		panic("no action " + q.Action)
	}
	must(err)
	return action
}

func openBlock(q question, cluster crclient.Client, log *logrus.Logger) block {
	var action any
	var err error
	switch q.Action {
	case "velero.io/pod":
		action = blocks.NewPodAction(log)
	case "velero.io/pvc":
		action, err = blocks.NewPVCAction(factory{cluster: cluster})(log)
	case "velero.io/service-account":
		action, err = blocks.NewServiceAccountAction(log, listers(q), served{versions: q.Versions})
	default:
		panic("no action " + q.Action)
	}
	must(err)
	return action.(block)
}

// A cluster that has the objects of the question, and a CSI driver that cuts each snapshot at once.
func clusterOf(q question) crclient.Client {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{
		corev1.AddToScheme, appsv1.AddToScheme, storagev1.AddToScheme, snapshots.AddToScheme, v1.AddToScheme, v2alpha1.AddToScheme,
	} {
		must(add(scheme))
	}
	builder := fake.NewClientBuilder().WithScheme(scheme).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(ctx context.Context, cluster crclient.WithWatch, made crclient.Object, options ...crclient.CreateOption) error {
			if made.GetName() == "" {
				made.SetName(made.GetGenerateName() + "made")
				made.SetGenerateName("")
			}
			if snapshot, ok := made.(*snapshots.VolumeSnapshot); ok && q.Cut != nil {
				made.SetUID("of-snapshot")
				name := "content-of-" + made.GetName()
				ready := true
				snapshot.Status = &snapshots.VolumeSnapshotStatus{BoundVolumeSnapshotContentName: &name, ReadyToUse: &ready}
				content := &snapshots.VolumeSnapshotContent{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: q.Cut}
				content.Spec.Driver = "dir.csi.example"
				content.Spec.DeletionPolicy = snapshots.VolumeSnapshotContentDelete
				content.Spec.VolumeSnapshotRef = corev1.ObjectReference{Namespace: made.GetNamespace(), Name: made.GetName(), UID: made.GetUID()}
				must(cluster.Create(ctx, content))
			}
			return cluster.Create(ctx, made, options...)
		},
	})
	for _, object := range q.Objects {
		builder.WithObjects(&unstructured.Unstructured{Object: numbers(object).(map[string]any)})
	}
	return builder.Build()
}

type factory struct {
	client.Factory
	cluster crclient.Client
}

func (f factory) KubebuilderClient() (crclient.Client, error) { return f.cluster, nil }

type served struct {
	discovery.Helper
	versions []string
}

func (s served) APIGroups() []metav1.APIGroup {
	group := metav1.APIGroup{Name: "apiextensions.k8s.io"}
	for _, version := range s.versions {
		group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{GroupVersion: group.Name + "/" + version, Version: version})
	}
	rbac := metav1.APIGroup{Name: rbacv1.GroupName, PreferredVersion: metav1.GroupVersionForDiscovery{Version: "v1"}}
	return []metav1.APIGroup{group, rbac}
}

type bindings []rbacv1.ClusterRoleBinding

func (b bindings) List() ([]actionhelpers.ClusterRoleBinding, error) {
	var list []actionhelpers.ClusterRoleBinding
	for _, each := range b {
		list = append(list, actionhelpers.V1ClusterRoleBinding{Crb: each})
	}
	return list, nil
}

func listers(q question) map[string]actionhelpers.ClusterRoleBindingLister {
	return map[string]actionhelpers.ClusterRoleBindingLister{"v1": bindings(q.Bindings)}
}

// Those of one resource in the order of their names: Velero goes through maps.
func identifiers(list []velero.ResourceIdentifier) []identifier {
	var result []identifier
	for _, each := range list {
		result = append(result, identifier{each.Group, each.Resource, each.Namespace, each.Name})
	}
	sort.SliceStable(result, func(i, j int) bool {
		a, b := result[i], result[j]
		return a.Group == b.Group && a.Resource == b.Resource && a.Group == rbacv1.GroupName && a.Name < b.Name
	})
	return result
}

// The objects of a list as JSON, without what only says when they were written.
func all(cluster crclient.Client, list crclient.ObjectList) []any {
	must(cluster.List(context.Background(), list))
	bytes, err := json.Marshal(list)
	must(err)
	var read struct{ Items []map[string]any }
	must(json.Unmarshal(bytes, &read))
	var result []any
	for _, each := range read.Items {
		delete(each["metadata"].(map[string]any), "resourceVersion")
		result = append(result, each)
	}
	return result
}

// An operation's id without the time at its end.
func untimed(id string) string {
	parts := strings.Split(id, "/")
	last := len(parts) - 1
	if _, err := time.Parse(time.RFC3339, parts[last]); err == nil {
		parts[last] = "<time>"
	}
	return strings.Join(parts, "/")
}

func textOf(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// numbers makes whole numbers int64, as Kubernetes' own decoder does.
func numbers(value any) any {
	switch v := value.(type) {
	case float64:
		if v == float64(int64(v)) {
			return int64(v)
		}
	case map[string]any:
		for key, each := range v {
			v[key] = numbers(each)
		}
	case []any:
		for i, each := range v {
			v[i] = numbers(each)
		}
	}
	return value
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}
