#!/usr/bin/env node
// A data mover of one's own: answers DataUploads and DataDownloads with `spec.datamover: tar` and
// keeps each volume as a tar file in a directory of the node. docs/data-movers.md explains the
// contract. It needs kubectl and nothing else; run one of it.
import { execFileSync } from 'node:child_process';
import { setTimeout as sleep } from 'node:timers/promises';

const VELERO = process.env.VELERO_NAMESPACE ?? 'velero';
const ARCHIVE = process.env.TAR_ARCHIVE ?? '/var/lib/tar-data-mover';
const IMAGE = process.env.TAR_IMAGE ?? 'busybox:1.37';
const FINALIZER = 'example.io/tar-data-mover';
const VOLUME = 'example.io/volume';
const POLICY = 'example.io/reclaim-policy';
const FINAL = ['Completed', 'Failed', 'Canceled'];

const kubectl = (words, input) =>
  execFileSync('kubectl', words.split(' '), {
    input: input && JSON.stringify(input),
    encoding: 'utf8',
  });
const read = (words) => JSON.parse(kubectl(`${words} --ignore-not-found -o json`) || 'null');
const apply = (object) => kubectl('apply -f -', object);
const patch = (what, change) => kubectl(`patch ${what} --type=merge -p ${JSON.stringify(change)}`);
const remove = (what) => kubectl(`delete ${what} --ignore-not-found --wait=false`);
const now = () => new Date().toISOString().replace(/\.\d+Z$/, 'Z');

// A PUT of the version that was read: whoever changed it meanwhile wins, and the next pass looks
// again.
const write = (cr, status, metadata = {}) =>
  kubectl('replace -f -', {
    ...cr,
    metadata: { ...cr.metadata, ...metadata },
    status: { ...cr.status, ...status },
  });
const end = (cr, phase, more = {}) => write(cr, { phase, completionTimestamp: now(), ...more });

// What differs between the two directions: where the volume comes from, and what is done with it.
function workOf(cr) {
  const name = `tar-${cr.metadata.uid}`;
  if (cr.kind === 'DataUpload') {
    const { sourceNamespace: namespace, sourcePVC, csiSnapshot } = cr.spec;
    const file = `${namespace}-${sourcePVC}-${cr.metadata.uid}.tar`;
    const script = `tar -C /volume -cf /archive/${file}.part . && mv /archive/${file}.part /archive/${file} && wc -c < /archive/${file} > /dev/termination-log`;
    const dataSource = {
      apiGroup: 'snapshot.storage.k8s.io',
      kind: 'VolumeSnapshot',
      name: csiSnapshot.volumeSnapshot,
    };
    return { name, namespace, like: sourcePVC, dataSource, script, snapshotID: file };
  }
  const { targetVolume, snapshotID } = cr.spec;
  const script = `tar -C /volume -xf /archive/${snapshotID} && wc -c < /archive/${snapshotID} > /dev/termination-log`;
  return { name, namespace: targetVolume.namespace, like: targetVolume.pvc, script };
}

function start(cr) {
  const { name, namespace, like, dataSource, script } = workOf(cr);
  const of = read(`get pvc ${like} -n ${namespace}`);
  if (!of) return; // Velero makes the target of a DataDownload after it.
  const metadata = { name, namespace, labels: { 'example.io/tar-data-mover': cr.metadata.name } };
  const { storageClassName, resources } = of.spec;
  apply({
    apiVersion: 'v1',
    kind: 'PersistentVolumeClaim',
    metadata,
    spec: { accessModes: ['ReadWriteOnce'], storageClassName, resources, dataSource },
  });
  const volumes = [
    { name: 'volume', persistentVolumeClaim: { claimName: name } },
    { name: 'archive', hostPath: { path: ARCHIVE, type: 'DirectoryOrCreate' } },
  ];
  const volumeMounts = volumes.map((volume) => ({
    name: volume.name,
    mountPath: `/${volume.name}`,
  }));
  const container = { name: 'tar', image: IMAGE, command: ['sh', '-c', script], volumeMounts };
  apply({
    apiVersion: 'v1',
    kind: 'Pod',
    metadata,
    spec: { restartPolicy: 'Never', containers: [container], volumes },
  });
  write(cr, { phase: 'InProgress', startTimestamp: now() });
}

// The volume goes from the claim of this mover to the one that waits for it. A second try finds
// what the first one did.
function handOver(cr, volume, persistentVolumeReclaimPolicy) {
  const { name, namespace, like } = workOf(cr);
  patch(`pv ${volume}`, { spec: { persistentVolumeReclaimPolicy: 'Retain' } });
  kubectl(`delete pod,pvc ${name} -n ${namespace} --ignore-not-found`);
  const target = read(`get pvc ${like} -n ${namespace}`);
  if (target.status?.phase !== 'Bound') {
    const claimRef = { namespace, name: like, uid: null, resourceVersion: null };
    patch(`pv ${volume}`, {
      metadata: { labels: target.spec.selector?.matchLabels },
      spec: { claimRef },
    });
    patch(`pvc ${like} -n ${namespace}`, { spec: { volumeName: volume } });
    kubectl(`wait pvc ${like} -n ${namespace} --for=jsonpath={.status.phase}=Bound --timeout=60s`);
  }
  patch(`pv ${volume}`, { spec: { persistentVolumeReclaimPolicy } });
}

function step(cr) {
  const { phase = 'New' } = cr.status ?? {};
  const { finalizers = [], annotations = {}, deletionTimestamp } = cr.metadata;
  const { name, namespace, snapshotID } = workOf(cr);
  if (FINAL.includes(phase)) {
    if (!finalizers.includes(FINALIZER)) return;
    for (const kind of ['pod', 'pvc']) remove(`${kind} ${name} -n ${namespace}`);
    if (cr.kind === 'DataUpload')
      remove(`volumesnapshot ${cr.spec.csiSnapshot.volumeSnapshot} -n ${namespace}`);
    return write(cr, {}, { finalizers: finalizers.filter((each) => each !== FINALIZER) });
  }
  if (annotations[VOLUME]) {
    handOver(cr, annotations[VOLUME], annotations[POLICY]);
    return end(cr, 'Completed');
  }
  if (cr.spec.cancel || deletionTimestamp) {
    kubectl(`delete pod ${name} -n ${namespace} --ignore-not-found`); // It writes no more once this returns.
    return end(cr, 'Canceled', { message: 'canceled' });
  }
  if (phase === 'New')
    return write(
      cr,
      { phase: 'Accepted', acceptedTimestamp: now() },
      { finalizers: [...finalizers, FINALIZER] },
    );
  if (phase === 'Accepted') return start(cr);
  const pod = read(`get pod ${name} -n ${namespace}`);
  if (!pod || pod.status?.phase === 'Failed')
    return end(cr, 'Failed', { message: `pod ${namespace}/${name} failed; see its log` });
  if (pod.status?.phase !== 'Succeeded') return;
  const bytes = Number(pod.status.containerStatuses[0].state.terminated.message);
  const progress = { totalBytes: bytes, bytesDone: bytes };
  if (cr.kind === 'DataUpload')
    return end(cr, 'Completed', { progress, snapshotID, dataMoverResult: { file: snapshotID } });
  // Noted before its claim goes, which is all that names it.
  const { spec, metadata } = read(`get pvc ${name} -n ${namespace}`);
  const volume = read(`get pv ${spec.volumeName}`).spec;
  // Users of the namespace can make a claim of that name, which names a volume of somebody else.
  if (volume.claimRef?.uid !== metadata.uid)
    return end(cr, 'Failed', {
      message: `volume ${spec.volumeName} is not bound to claim ${name}`,
    });
  const noted = { [VOLUME]: spec.volumeName, [POLICY]: volume.persistentVolumeReclaimPolicy };
  write(cr, { progress }, { annotations: { ...annotations, ...noted } });
}

for (;;) {
  for (const kind of ['datauploads', 'datadownloads']) {
    for (const cr of read(`get ${kind} -n ${VELERO}`)?.items ?? []) {
      if (cr.spec.datamover !== 'tar') continue;
      try {
        step(cr);
      } catch (error) {
        console.error(`${cr.kind} ${cr.metadata.name}: ${error.message}`); // The next pass tries again.
      }
    }
  }
  await sleep(Number(process.env.TAR_INTERVAL_MS ?? 2000));
}
