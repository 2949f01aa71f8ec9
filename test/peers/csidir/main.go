// csidir is a small CSI driver for tests: a volume is a folder, a snapshot is a copy of it, publishing is a bind mount.
// A block volume is a sparse file, and publishing puts a loop device over it.
// A group snapshot is the copies of all its volumes while nobody writes them: processes that have a file open for writing are stopped
// meanwhile. Its members can be deleted together only, as those of most real drivers, unless the class says `members: alone`.
// One process serves identity, controller, group controller and node service on -endpoint and registers itself with a kubelet through -registry.
// The real csi-provisioner, csi-snapshotter and kubelet talk to it as to any other driver.
package main

import (
	"context"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
	reg "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

type driver struct {
	csi.UnimplementedIdentityServer
	csi.UnimplementedControllerServer
	csi.UnimplementedGroupControllerServer
	csi.UnimplementedNodeServer
	name, node, data, endpoint string
	delay                      time.Duration
	groups                     sync.Mutex // one group is cut at a time, and none is deleted meanwhile
}

func (d *driver) vol(id string) string   { return filepath.Join(d.data, "volumes", id) }
func (d *driver) snap(id string) string  { return filepath.Join(d.data, "snapshots", id) }
func (d *driver) group(id string) string { return filepath.Join(d.data, "groups", id) }

// clean refuses identifiers that would leave the data folder
func clean(id string) error {
	if id == "" || id != filepath.Base(id) || strings.HasPrefix(id, ".") {
		return status.Errorf(codes.InvalidArgument, "bad id %q", id)
	}
	return nil
}
func exists(p string) bool { _, err := os.Stat(p); return err == nil }

// copyTree makes dst a copy of src in one step: a folder that is there is complete
func copyTree(src, dst string) error {
	tmp := dst + ".tmp"
	os.RemoveAll(tmp)
	if out, err := exec.Command("cp", "-a", "--reflink=auto", src, tmp).CombinedOutput(); err != nil {
		return status.Errorf(codes.Internal, "cp: %v: %s", err, out)
	}
	return os.Rename(tmp, dst)
}

// makeImage makes a file of holes of the given size, in one step
func makeImage(p string, size int64) error {
	f, err := os.Create(p + ".tmp")
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		return err
	}
	return os.Rename(p+".tmp", p)
}
func size(p string) (n int64) {
	filepath.WalkDir(p, func(_ string, e fs.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			if i, err := e.Info(); err == nil {
				n += i.Size()
			}
		}
		return nil
	})
	return n
}

// ---- identity
func (d *driver) GetPluginInfo(context.Context, *csi.GetPluginInfoRequest) (*csi.GetPluginInfoResponse, error) {
	return &csi.GetPluginInfoResponse{Name: d.name, VendorVersion: "1"}, nil
}
func (d *driver) GetPluginCapabilities(context.Context, *csi.GetPluginCapabilitiesRequest) (*csi.GetPluginCapabilitiesResponse, error) {
	r := &csi.GetPluginCapabilitiesResponse{}
	for _, t := range []csi.PluginCapability_Service_Type{csi.PluginCapability_Service_CONTROLLER_SERVICE,
		csi.PluginCapability_Service_GROUP_CONTROLLER_SERVICE} {
		r.Capabilities = append(r.Capabilities, &csi.PluginCapability{Type: &csi.PluginCapability_Service_{
			Service: &csi.PluginCapability_Service{Type: t}}})
	}
	return r, nil
}
func (d *driver) Probe(context.Context, *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(true)}, nil
}

// ---- controller
func (d *driver) ControllerGetCapabilities(context.Context, *csi.ControllerGetCapabilitiesRequest) (*csi.ControllerGetCapabilitiesResponse, error) {
	r := &csi.ControllerGetCapabilitiesResponse{}
	for _, t := range []csi.ControllerServiceCapability_RPC_Type{csi.ControllerServiceCapability_RPC_CREATE_DELETE_VOLUME,
		csi.ControllerServiceCapability_RPC_CREATE_DELETE_SNAPSHOT, csi.ControllerServiceCapability_RPC_LIST_SNAPSHOTS} {
		r.Capabilities = append(r.Capabilities, &csi.ControllerServiceCapability{Type: &csi.ControllerServiceCapability_Rpc{
			Rpc: &csi.ControllerServiceCapability_RPC{Type: t}}})
	}
	return r, nil
}
func (d *driver) CreateVolume(_ context.Context, q *csi.CreateVolumeRequest) (*csi.CreateVolumeResponse, error) {
	if err := clean(q.Name); err != nil {
		return nil, err
	}
	block := false
	for _, c := range q.VolumeCapabilities {
		block = block || c.GetBlock() != nil
	}
	time.Sleep(d.delay)
	if p := d.vol(q.Name); !exists(p) {
		if s := q.GetVolumeContentSource().GetSnapshot().GetSnapshotId(); s != "" {
			if err := clean(s); err != nil {
				return nil, err
			}
			if !exists(d.snap(s)) {
				return nil, status.Errorf(codes.NotFound, "snapshot %s", s)
			}
			if err := copyTree(filepath.Join(d.snap(s), "data"), p); err != nil {
				return nil, err
			}
		} else if block {
			if err := makeImage(p, q.GetCapacityRange().GetRequiredBytes()); err != nil {
				return nil, err
			}
		} else if err := os.MkdirAll(p, 0o777); err != nil {
			return nil, err
		}
	}
	return &csi.CreateVolumeResponse{Volume: &csi.Volume{VolumeId: q.Name, CapacityBytes: q.GetCapacityRange().GetRequiredBytes(),
		ContentSource: q.VolumeContentSource}}, nil
}
func (d *driver) DeleteVolume(_ context.Context, q *csi.DeleteVolumeRequest) (*csi.DeleteVolumeResponse, error) {
	if err := clean(q.VolumeId); err != nil {
		return nil, err
	}
	d.detach(q.VolumeId)
	return &csi.DeleteVolumeResponse{}, os.RemoveAll(d.vol(q.VolumeId))
}
func (d *driver) ValidateVolumeCapabilities(_ context.Context, q *csi.ValidateVolumeCapabilitiesRequest) (*csi.ValidateVolumeCapabilitiesResponse, error) {
	return &csi.ValidateVolumeCapabilitiesResponse{Confirmed: &csi.ValidateVolumeCapabilitiesResponse_Confirmed{VolumeCapabilities: q.VolumeCapabilities}}, nil
}

// a snapshot is snapshots/ID/{data,source,group}; source names the volume, and group, where it is, the group it is deleted with
func (d *driver) snapshot(id string) (*csi.Snapshot, error) {
	src, err := os.ReadFile(filepath.Join(d.snap(id), "source"))
	if err != nil {
		return nil, status.Errorf(codes.NotFound, "snapshot %s", id)
	}
	st, _ := os.Stat(filepath.Join(d.snap(id), "source"))
	group, _ := os.ReadFile(filepath.Join(d.snap(id), "group"))
	return &csi.Snapshot{SnapshotId: id, SourceVolumeId: string(src), ReadyToUse: true, GroupSnapshotId: string(group),
		CreationTime: timestamppb.New(st.ModTime()), SizeBytes: size(filepath.Join(d.snap(id), "data"))}, nil
}
func (d *driver) CreateSnapshot(_ context.Context, q *csi.CreateSnapshotRequest) (*csi.CreateSnapshotResponse, error) {
	if err := clean(q.Name); err != nil {
		return nil, err
	}
	if !exists(d.vol(q.SourceVolumeId)) || clean(q.SourceVolumeId) != nil {
		return nil, status.Errorf(codes.NotFound, "volume %s", q.SourceVolumeId)
	}
	time.Sleep(d.delay)
	if !exists(filepath.Join(d.snap(q.Name), "source")) {
		if err := os.MkdirAll(d.snap(q.Name), 0o755); err != nil {
			return nil, err
		}
		os.RemoveAll(filepath.Join(d.snap(q.Name), "data"))
		if err := copyTree(d.vol(q.SourceVolumeId), filepath.Join(d.snap(q.Name), "data")); err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(d.snap(q.Name), "source"), []byte(q.SourceVolumeId), 0o644); err != nil {
			return nil, err
		}
	}
	s, err := d.snapshot(q.Name)
	return &csi.CreateSnapshotResponse{Snapshot: s}, err
}
func (d *driver) DeleteSnapshot(_ context.Context, q *csi.DeleteSnapshotRequest) (*csi.DeleteSnapshotResponse, error) {
	if err := clean(q.SnapshotId); err != nil {
		return nil, err
	}
	if group, err := os.ReadFile(filepath.Join(d.snap(q.SnapshotId), "group")); err == nil {
		return nil, status.Errorf(codes.InvalidArgument, "snapshot %s is part of group %s, which is deleted as a whole", q.SnapshotId, group)
	}
	return &csi.DeleteSnapshotResponse{}, os.RemoveAll(d.snap(q.SnapshotId))
}
func (d *driver) ListSnapshots(_ context.Context, q *csi.ListSnapshotsRequest) (*csi.ListSnapshotsResponse, error) {
	r, ids := &csi.ListSnapshotsResponse{}, []string{}
	if q.SnapshotId != "" {
		ids = append(ids, q.SnapshotId)
	} else if es, err := os.ReadDir(filepath.Join(d.data, "snapshots")); err == nil {
		for _, e := range es {
			ids = append(ids, e.Name())
		}
	}
	sort.Strings(ids)
	for _, id := range ids {
		if s, err := d.snapshot(id); err == nil && (q.SourceVolumeId == "" || q.SourceVolumeId == s.SourceVolumeId) {
			r.Entries = append(r.Entries, &csi.ListSnapshotsResponse_Entry{Snapshot: s})
		}
	}
	return r, nil
}

// ---- group controller: a group is groups/ID, which names a snapshot in each line
func (d *driver) GroupControllerGetCapabilities(context.Context, *csi.GroupControllerGetCapabilitiesRequest) (*csi.GroupControllerGetCapabilitiesResponse, error) {
	return &csi.GroupControllerGetCapabilitiesResponse{Capabilities: []*csi.GroupControllerServiceCapability{{
		Type: &csi.GroupControllerServiceCapability_Rpc{Rpc: &csi.GroupControllerServiceCapability_RPC{
			Type: csi.GroupControllerServiceCapability_RPC_CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT}}}}}, nil
}

// members of a group, sorted; NotFound where there is none of that ID
func (d *driver) members(id string) ([]string, error) {
	b, err := os.ReadFile(d.group(id))
	if err != nil {
		return nil, status.Errorf(codes.NotFound, "group %s", id)
	}
	return strings.Fields(string(b)), nil
}
func (d *driver) groupSnapshot(id string) (*csi.VolumeGroupSnapshot, error) {
	ids, err := d.members(id)
	if err != nil {
		return nil, err
	}
	st, err := os.Stat(d.group(id))
	if err != nil {
		return nil, err
	}
	g := &csi.VolumeGroupSnapshot{GroupSnapshotId: id, ReadyToUse: true, CreationTime: timestamppb.New(st.ModTime())}
	for _, each := range ids {
		s, err := d.snapshot(each)
		if status.Code(err) == codes.NotFound {
			continue // deleted alone
		} else if err != nil {
			return nil, err
		}
		// inside this message it is always there
		s.GroupSnapshotId = id
		g.Snapshots = append(g.Snapshots, s)
	}
	return g, nil
}

// writers are processes that have a file below one of the folders open for writing. Files are compared, and no paths: a container sees
// its volume under another one.
func writers(folders []string) (pids []int) {
	type file struct{ dev, ino uint64 }
	ours := map[file]bool{}
	of := func(i fs.FileInfo) file { st := i.Sys().(*syscall.Stat_t); return file{uint64(st.Dev), st.Ino} }
	for _, folder := range folders {
		filepath.WalkDir(folder, func(_ string, e fs.DirEntry, err error) error {
			if err == nil && e.Type().IsRegular() {
				if i, err := e.Info(); err == nil {
					ours[of(i)] = true
				}
			}
			return nil
		})
	}
	fds, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, fd := range fds {
		if i, err := os.Stat(fd); err != nil || !ours[of(i)] {
			continue
		}
		pid, err := strconv.Atoi(strings.Split(fd, "/")[2])
		if err == nil && pid != os.Getpid() && isWritten(strings.Replace(fd, "/fd/", "/fdinfo/", 1)) {
			pids = append(pids, pid)
		}
	}
	return pids
}
func isWritten(fdinfo string) bool {
	b, _ := os.ReadFile(fdinfo)
	f := strings.Fields(string(b))
	for i := range f {
		if f[i] == "flags:" && i+1 < len(f) {
			flags, _ := strconv.ParseInt(f[i+1], 8, 64)
			return flags&(syscall.O_WRONLY|syscall.O_RDWR) != 0
		}
	}
	return false
}

// frozen runs the task while no process writes the folders, and lets them go on at the same time
func frozen(folders []string, task func() error) error {
	pids := writers(folders)
	for _, pid := range pids {
		syscall.Kill(pid, syscall.SIGSTOP)
	}
	defer func() {
		for _, pid := range pids {
			syscall.Kill(pid, syscall.SIGCONT)
		}
	}()
	return task()
}
func (d *driver) CreateVolumeGroupSnapshot(_ context.Context, q *csi.CreateVolumeGroupSnapshotRequest) (*csi.CreateVolumeGroupSnapshotResponse, error) {
	if err := clean(q.Name); err != nil {
		return nil, err
	}
	d.groups.Lock()
	defer d.groups.Unlock()
	if !exists(d.group(q.Name)) {
		ids, folders := []string{}, []string{}
		for i, v := range q.SourceVolumeIds {
			if clean(v) != nil || !exists(d.vol(v)) {
				return nil, status.Errorf(codes.NotFound, "volume %s", v)
			}
			ids, folders = append(ids, fmt.Sprintf("%s-%d", q.Name, i)), append(folders, d.vol(v))
		}
		time.Sleep(d.delay)
		err := frozen(folders, func() error {
			for i, id := range ids {
				os.RemoveAll(d.snap(id))
				if err := os.MkdirAll(d.snap(id), 0o755); err != nil {
					return err
				}
				if err := copyTree(folders[i], filepath.Join(d.snap(id), "data")); err != nil {
					return err
				}
			}
			return nil
		})
		for i, id := range ids {
			if err == nil && q.Parameters["members"] != "alone" {
				err = os.WriteFile(filepath.Join(d.snap(id), "group"), []byte(q.Name), 0o644)
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(d.snap(id), "source"), []byte(q.SourceVolumeIds[i]), 0o644)
			}
		}
		if err == nil {
			err = os.WriteFile(d.group(q.Name), []byte(strings.Join(ids, "\n")), 0o644)
		}
		if err != nil {
			for _, id := range ids {
				os.RemoveAll(d.snap(id))
			}
			return nil, err
		}
	}
	g, err := d.groupSnapshot(q.Name)
	return &csi.CreateVolumeGroupSnapshotResponse{GroupSnapshot: g}, err
}
func (d *driver) DeleteVolumeGroupSnapshot(_ context.Context, q *csi.DeleteVolumeGroupSnapshotRequest) (*csi.DeleteVolumeGroupSnapshotResponse, error) {
	if err := clean(q.GroupSnapshotId); err != nil {
		return nil, err
	}
	d.groups.Lock()
	defer d.groups.Unlock()
	ids, err := d.members(q.GroupSnapshotId)
	if err != nil {
		return &csi.DeleteVolumeGroupSnapshotResponse{}, nil
	}
	if !same(ids, q.SnapshotIds) {
		return nil, status.Errorf(codes.InvalidArgument, "group %s has the snapshots %v, not %v", q.GroupSnapshotId, ids, q.SnapshotIds)
	}
	for _, id := range ids {
		if err := os.RemoveAll(d.snap(id)); err != nil {
			return nil, err
		}
	}
	return &csi.DeleteVolumeGroupSnapshotResponse{}, os.Remove(d.group(q.GroupSnapshotId))
}
func (d *driver) GetVolumeGroupSnapshot(_ context.Context, q *csi.GetVolumeGroupSnapshotRequest) (*csi.GetVolumeGroupSnapshotResponse, error) {
	if err := clean(q.GroupSnapshotId); err != nil {
		return nil, err
	}
	if ids, err := d.members(q.GroupSnapshotId); err == nil && !same(ids, q.SnapshotIds) {
		return nil, status.Errorf(codes.InvalidArgument, "group %s has the snapshots %v, not %v", q.GroupSnapshotId, ids, q.SnapshotIds)
	}
	g, err := d.groupSnapshot(q.GroupSnapshotId)
	return &csi.GetVolumeGroupSnapshotResponse{GroupSnapshot: g}, err
}
func same(a, b []string) bool {
	a, b = append([]string{}, a...), append([]string{}, b...)
	sort.Strings(a)
	sort.Strings(b)
	return strings.Join(a, " ") == strings.Join(b, " ")
}

// ---- node
func (d *driver) NodeGetInfo(context.Context, *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	return &csi.NodeGetInfoResponse{NodeId: d.node}, nil
}
func (d *driver) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	return &csi.NodeGetCapabilitiesResponse{}, nil
}
func mounted(p string) bool {
	b, _ := os.ReadFile("/proc/self/mountinfo")
	for _, l := range strings.Split(string(b), "\n") {
		if f := strings.Fields(l); len(f) > 4 && f[4] == p {
			return true
		}
	}
	return false
}
func (d *driver) NodePublishVolume(_ context.Context, q *csi.NodePublishVolumeRequest) (*csi.NodePublishVolumeResponse, error) {
	if err := clean(q.VolumeId); err != nil {
		return nil, err
	}
	if !exists(d.vol(q.VolumeId)) {
		return nil, status.Errorf(codes.NotFound, "volume %s", q.VolumeId)
	}
	if q.GetVolumeCapability().GetBlock() != nil {
		return &csi.NodePublishVolumeResponse{}, d.publishBlock(q)
	}
	if !mounted(q.TargetPath) {
		if err := os.MkdirAll(q.TargetPath, 0o750); err != nil {
			return nil, err
		}
		if err := syscall.Mount(d.vol(q.VolumeId), q.TargetPath, "", syscall.MS_BIND, ""); err != nil {
			return nil, status.Errorf(codes.Internal, "bind: %v", err)
		}
		if q.Readonly {
			if err := syscall.Mount("", q.TargetPath, "", syscall.MS_BIND|syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
				return nil, status.Errorf(codes.Internal, "remount: %v", err)
			}
		}
	}
	return &csi.NodePublishVolumeResponse{}, nil
}

// publishBlock binds a loop device over the volume's file onto the target, which kubelet hands to the container
func (d *driver) publishBlock(q *csi.NodePublishVolumeRequest) error {
	if mounted(q.TargetPath) {
		return nil
	}
	args := []string{"--find", "--show"}
	if q.Readonly {
		args = append(args, "--read-only")
	}
	out, err := exec.Command("losetup", append(args, d.vol(q.VolumeId))...).CombinedOutput()
	if err != nil {
		return status.Errorf(codes.Internal, "losetup: %v: %s", err, out)
	}
	loop := strings.TrimSpace(string(out))
	if err := os.MkdirAll(filepath.Dir(q.TargetPath), 0o750); err != nil {
		return err
	}
	f, err := os.OpenFile(q.TargetPath, os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	f.Close()
	if err := syscall.Mount(loop, q.TargetPath, "", syscall.MS_BIND, ""); err != nil {
		exec.Command("losetup", "--detach", loop).Run()
		return status.Errorf(codes.Internal, "bind %s: %v", loop, err)
	}
	return nil
}

// detach ends the loop devices over a volume's file; one that is still in use ends with its last user
func (d *driver) detach(id string) {
	out, err := exec.Command("losetup", "--noheadings", "--output", "NAME", "--associated", d.vol(id)).Output()
	if err != nil {
		return
	}
	for _, loop := range strings.Fields(string(out)) {
		exec.Command("losetup", "--detach", loop).Run()
	}
}
func (d *driver) NodeUnpublishVolume(_ context.Context, q *csi.NodeUnpublishVolumeRequest) (*csi.NodeUnpublishVolumeResponse, error) {
	if mounted(q.TargetPath) {
		if err := syscall.Unmount(q.TargetPath, 0); err != nil {
			return nil, status.Errorf(codes.Internal, "umount: %v", err)
		}
	}
	if err := os.Remove(q.TargetPath); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	if s, err := os.Stat(d.vol(q.VolumeId)); err == nil && s.Mode().IsRegular() {
		d.detach(q.VolumeId)
	}
	return &csi.NodeUnpublishVolumeResponse{}, nil
}

// ---- registration with kubelet's plugin watcher
type registration struct {
	reg.UnimplementedRegistrationServer
	d *driver
}

func (r registration) GetInfo(context.Context, *reg.InfoRequest) (*reg.PluginInfo, error) {
	return &reg.PluginInfo{Type: reg.CSIPlugin, Name: r.d.name, Endpoint: r.d.endpoint, SupportedVersions: []string{"1.0.0"}}, nil
}
func (r registration) NotifyRegistrationStatus(_ context.Context, s *reg.RegistrationStatus) (*reg.RegistrationStatusResponse, error) {
	log.Printf("registered=%v %s", s.PluginRegistered, s.Error)
	return &reg.RegistrationStatusResponse{}, nil
}

func listen(p string) net.Listener {
	os.Remove(p)
	if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
		log.Fatal(err)
	}
	l, err := net.Listen("unix", p)
	if err != nil {
		log.Fatal(err)
	}
	return l
}

func main() {
	d := &driver{}
	registry := flag.String("registry", "", "kubelet's plugins_registry folder; empty: do not register")
	flag.StringVar(&d.name, "name", "dir.csi.test", "driver name")
	flag.StringVar(&d.node, "node", "node-1", "node id")
	flag.StringVar(&d.data, "data", "", "folder for volumes and snapshots")
	flag.StringVar(&d.endpoint, "endpoint", "", "unix socket path (at most 107 characters)")
	flag.DurationVar(&d.delay, "delay", 0, "wait this long in CreateVolume and CreateSnapshot")
	flag.Parse()
	for _, s := range []string{"volumes", "snapshots", "groups"} {
		if err := os.MkdirAll(filepath.Join(d.data, s), 0o755); err != nil {
			log.Fatal(err)
		}
	}
	logger := func(ctx context.Context, q any, i *grpc.UnaryServerInfo, h grpc.UnaryHandler) (any, error) {
		r, err := h(ctx, q)
		if !strings.HasSuffix(i.FullMethod, "Probe") {
			log.Printf("%s %v -> %v %v", i.FullMethod, q, r, err)
		}
		return r, err
	}
	s := grpc.NewServer(grpc.UnaryInterceptor(logger))
	csi.RegisterIdentityServer(s, d)
	csi.RegisterControllerServer(s, d)
	csi.RegisterGroupControllerServer(s, d)
	csi.RegisterNodeServer(s, d)
	go func() { log.Fatal(s.Serve(listen(d.endpoint))) }()
	if *registry != "" {
		r := grpc.NewServer()
		reg.RegisterRegistrationServer(r, registration{d: d})
		go func() { log.Fatal(r.Serve(listen(filepath.Join(*registry, d.name+"-reg.sock")))) }()
	}
	c := make(chan os.Signal, 1)
	signal.Notify(c, syscall.SIGINT, syscall.SIGTERM)
	fmt.Fprintln(os.Stderr, "stopping on", <-c)
	os.Remove(filepath.Join(*registry, d.name+"-reg.sock"))
}
