import { lookup } from '../../base/index.ts';
import { CRDS, type KubeObject, type Resource, VELERO_GROUP } from '../../kube/index.ts';
import { DEFAULT_STORAGE_CLASS } from './resources.ts';
import type { Stored } from './store.ts';

/** A column of `kubectl get`, in the form of the API server. */
export interface Column {
  readonly name: string;
  readonly type?: string;
  readonly format?: string;
  /** Above 0: shown only with `-o wide`. */
  readonly priority?: number;
  readonly cell: (object: Stored, now: number) => unknown;
}

const NONE = '<none>';
const UNKNOWN = '<unknown>';
const UNSET = '<unset>';

type Fields = Record<string, unknown>;
const fieldsOf = (value: unknown): Fields =>
  typeof value === 'object' && value !== null ? (value as Fields) : {};
const listOf = (value: unknown): unknown[] => (Array.isArray(value) ? (value as unknown[]) : []);
const at = (object: unknown, path: string): unknown => {
  let found = object;
  for (const step of path.split('.')) found = lookup(fieldsOf(found), step);
  return found;
};
const text = (value: unknown, otherwise = ''): string =>
  typeof value === 'string' && value !== '' ? value : otherwise;
const count = (value: unknown): number => (typeof value === 'number' ? value : 0);

/** Time since `time`, or `otherwise` if it is missing. */
const since = (time: unknown, now: number, otherwise = UNKNOWN): string => {
  const ms = typeof time === 'string' ? Date.parse(time) : NaN;
  return Number.isNaN(ms) ? otherwise : humanDuration(now - ms);
};
const isDeleted = ({ metadata }: Stored): boolean => metadata.deletionTimestamp !== undefined;

const NAME: Column = { name: 'Name', format: 'name', cell: ({ metadata }) => metadata.name };
const AGE: Column = {
  name: 'Age',
  cell: ({ metadata }, now) => since(metadata.creationTimestamp, now),
};
const path = (name: string, where: string, otherwise = ''): Column => ({
  name,
  cell: (object) => text(at(object, where), otherwise),
});
const wide = (column: Column): Column => ({ ...column, priority: 1 });
const integer = (name: string, where: string): Column => ({
  name,
  type: 'integer',
  cell: (object) => count(at(object, where)),
});
const bool = (name: string, where: string): Column => ({
  name,
  type: 'boolean',
  cell: (object) => at(object, where) === true,
});

const MODES: Record<string, string> = {
  ReadWriteOnce: 'RWO',
  ReadOnlyMany: 'ROX',
  ReadWriteMany: 'RWX',
  ReadWriteOncePod: 'RWOP',
};
const modesOf = (modes: unknown): string =>
  Object.keys(MODES)
    .filter((mode) => listOf(modes).includes(mode))
    .map((mode) => lookup(MODES, mode))
    .join(',');
const selectorOf = (labels: unknown): string =>
  Object.entries(fieldsOf(labels))
    .map(([key, value]) => `${key}=${String(value)}`)
    .sort()
    .join(',') || NONE;

/** The status that `kubectl get pods` shows. Container states are more precise than the phase. */
function podStatus(pod: Stored): string {
  let reason = text(at(pod, 'status.reason'), text(at(pod, 'status.phase')));
  let isRunning = false;
  for (const status of listOf(at(pod, 'status.containerStatuses')).reverse()) {
    const state = fieldsOf(at(status, 'state'));
    const waiting = text(at(state, 'waiting.reason'));
    const exitCode = at(state, 'terminated.exitCode');
    if (waiting !== '') reason = waiting;
    else if (state.terminated !== undefined) {
      reason = text(at(state, 'terminated.reason'), `ExitCode:${String(exitCode)}`);
    } else if (state.running !== undefined && at(status, 'ready') === true) isRunning = true;
  }
  if (reason === 'Completed' && isRunning) {
    const isReady = listOf(at(pod, 'status.conditions')).some(
      (condition) => at(condition, 'type') === 'Ready' && at(condition, 'status') === 'True',
    );
    reason = isReady ? 'Running' : 'NotReady';
  }
  return isDeleted(pod) ? 'Terminating' : reason;
}

function nodeStatus(node: Stored): string {
  const ready = listOf(at(node, 'status.conditions')).find(
    (condition) => at(condition, 'type') === 'Ready',
  );
  const words = [
    ready === undefined ? 'Unknown' : at(ready, 'status') === 'True' ? 'Ready' : 'NotReady',
  ];
  if (at(node, 'spec.unschedulable') === true) words.push('SchedulingDisabled');
  return words.join(',');
}

const ROLE = 'node-role.kubernetes.io/';

const addressOf = (node: Stored, type: string): string => {
  const found = listOf(at(node, 'status.addresses')).find((one) => at(one, 'type') === type);
  return text(at(found, 'address'), NONE);
};
const eventSource = (event: Stored): string => {
  const component = text(at(event, 'source.component'), text(event.reportingComponent));
  return [component, text(at(event, 'source.host'), text(event.reportingInstance))]
    .filter((word) => word !== '')
    .join(', ');
};

const COLUMNS: Record<string, readonly Column[]> = {
  pods: [
    NAME,
    {
      name: 'Ready',
      cell: (pod) => {
        const ready = listOf(at(pod, 'status.containerStatuses')).filter(
          (status) => at(status, 'ready') === true && at(status, 'state.running') !== undefined,
        );
        return `${ready.length}/${listOf(at(pod, 'spec.containers')).length}`;
      },
    },
    { name: 'Status', cell: podStatus },
    {
      name: 'Restarts',
      cell: (pod) =>
        String(
          listOf(at(pod, 'status.containerStatuses')).reduce<number>(
            (sum, status) => sum + count(at(status, 'restartCount')),
            0,
          ),
        ),
    },
    AGE,
    wide(path('IP', 'status.podIP', NONE)),
    wide(path('Node', 'spec.nodeName', NONE)),
    wide(path('Nominated Node', 'status.nominatedNodeName', NONE)),
    wide({ name: 'Readiness Gates', cell: () => NONE }),
  ],
  persistentvolumeclaims: [
    NAME,
    {
      name: 'Status',
      cell: (claim) => (isDeleted(claim) ? 'Terminating' : text(at(claim, 'status.phase'))),
    },
    path('Volume', 'spec.volumeName'),
    {
      name: 'Capacity',
      cell: (claim) =>
        at(claim, 'spec.volumeName') ? text(at(claim, 'status.capacity.storage')) : '',
    },
    {
      name: 'Access Modes',
      cell: (claim) =>
        at(claim, 'spec.volumeName') ? modesOf(at(claim, 'status.accessModes')) : '',
    },
    path('StorageClass', 'spec.storageClassName'),
    path('VolumeAttributesClass', 'spec.volumeAttributesClassName', UNSET),
    AGE,
    wide(path('VolumeMode', 'spec.volumeMode', UNSET)),
  ],
  persistentvolumes: [
    NAME,
    path('Capacity', 'spec.capacity.storage'),
    { name: 'Access Modes', cell: (volume) => modesOf(at(volume, 'spec.accessModes')) },
    path('Reclaim Policy', 'spec.persistentVolumeReclaimPolicy'),
    {
      name: 'Status',
      cell: (volume) => (isDeleted(volume) ? 'Terminating' : text(at(volume, 'status.phase'))),
    },
    {
      name: 'Claim',
      cell: (volume) => {
        const claim = at(volume, 'spec.claimRef');
        return claim ? `${text(at(claim, 'namespace'))}/${text(at(claim, 'name'))}` : '';
      },
    },
    path('StorageClass', 'spec.storageClassName'),
    path('VolumeAttributesClass', 'spec.volumeAttributesClassName', UNSET),
    path('Reason', 'status.reason'),
    AGE,
    wide(path('VolumeMode', 'spec.volumeMode', UNSET)),
  ],
  storageclasses: [
    {
      ...NAME,
      cell: ({ metadata: { name, annotations } }) =>
        annotations?.[DEFAULT_STORAGE_CLASS] === 'true' ? `${name} (default)` : name,
    },
    path('Provisioner', 'provisioner'),
    path('ReclaimPolicy', 'reclaimPolicy', 'Delete'),
    path('VolumeBindingMode', 'volumeBindingMode', 'Immediate'),
    {
      name: 'AllowVolumeExpansion',
      cell: (storageClass) => String(storageClass.allowVolumeExpansion === true),
    },
    AGE,
  ],
  volumeattachments: [
    NAME,
    { ...path('Attacher', 'spec.attacher'), format: 'name' },
    path('PV', 'spec.source.persistentVolumeName'),
    path('Node', 'spec.nodeName'),
    bool('Attached', 'status.attached'),
    AGE,
  ],
  namespaces: [NAME, path('Status', 'status.phase'), AGE],
  nodes: [
    NAME,
    { name: 'Status', cell: nodeStatus },
    {
      name: 'Roles',
      cell: ({ metadata }) =>
        Object.keys(metadata.labels ?? {})
          .filter((label) => label.startsWith(ROLE))
          .map((label) => label.slice(ROLE.length))
          .sort()
          .join(',') || NONE,
    },
    AGE,
    path('Version', 'status.nodeInfo.kubeletVersion'),
    wide({ name: 'Internal-IP', cell: (node) => addressOf(node, 'InternalIP') }),
    wide({ name: 'External-IP', cell: (node) => addressOf(node, 'ExternalIP') }),
    wide(path('OS-Image', 'status.nodeInfo.osImage', UNKNOWN)),
    wide(path('Kernel-Version', 'status.nodeInfo.kernelVersion', UNKNOWN)),
    wide(path('Container-Runtime', 'status.nodeInfo.containerRuntimeVersion', UNKNOWN)),
  ],
  secrets: [
    NAME,
    path('Type', 'type'),
    { name: 'Data', cell: ({ data }) => String(Object.keys(fieldsOf(data)).length) },
    AGE,
  ],
  configmaps: [
    NAME,
    {
      name: 'Data',
      cell: ({ data, binaryData }) =>
        String(Object.keys(fieldsOf(data)).length + Object.keys(fieldsOf(binaryData)).length),
    },
    AGE,
  ],
  events: [
    {
      name: 'Last Seen',
      cell: (event, now) =>
        since(
          at(event, 'series.lastObservedTime') ?? event.lastTimestamp ?? event.eventTime,
          now,
          since(event.firstTimestamp ?? event.eventTime, now),
        ),
    },
    path('Type', 'type'),
    path('Reason', 'reason'),
    {
      name: 'Object',
      cell: (event) => {
        const kind = text(at(event, 'involvedObject.kind')).toLowerCase();
        const name = text(at(event, 'involvedObject.name'));
        return name === '' ? kind : `${kind}/${name}`;
      },
    },
    wide(path('Subobject', 'involvedObject.fieldPath')),
    wide({ name: 'Source', cell: eventSource }),
    { name: 'Message', cell: ({ message }) => text(message).trim() },
    wide({
      name: 'First Seen',
      cell: (event, now) => since(event.firstTimestamp ?? event.eventTime, now),
    }),
    wide({
      name: 'Count',
      cell: (event) => String(count(at(event, 'series.count')) || count(event.count) || 1),
    }),
    wide(NAME),
  ],
  daemonsets: [
    NAME,
    integer('Desired', 'status.desiredNumberScheduled'),
    integer('Current', 'status.currentNumberScheduled'),
    integer('Ready', 'status.numberReady'),
    integer('Up-to-date', 'status.updatedNumberScheduled'),
    integer('Available', 'status.numberAvailable'),
    {
      name: 'Node Selector',
      cell: (set) => selectorOf(at(set, 'spec.template.spec.nodeSelector')),
    },
    AGE,
    ...(['name', 'image'] as const).map((field) =>
      wide({
        name: field === 'name' ? 'Containers' : 'Images',
        cell: (set) =>
          listOf(at(set, 'spec.template.spec.containers'))
            .map((container) => text(at(container, field)))
            .join(','),
      }),
    ),
    wide({ name: 'Selector', cell: (set) => selectorOf(at(set, 'spec.selector.matchLabels')) }),
  ],
  priorityclasses: [
    NAME,
    integer('Value', 'value'),
    bool('Global-Default', 'globalDefault'),
    AGE,
    path('PreemptionPolicy', 'preemptionPolicy', 'PreemptLowerPriority'),
  ],
};

interface Printer {
  readonly name: string;
  readonly jsonPath: string;
  readonly type: string;
  readonly priority?: number;
}

const CREATED: Printer = { name: 'Age', jsonPath: '.metadata.creationTimestamp', type: 'date' };
const printer = (name: string, jsonPath: string, type = 'string'): Printer => ({
  name,
  jsonPath,
  type,
});

/** From the CustomResourceDefinitions of external-snapshotter 8 and Velero 1.18. */
const PRINTERS: Record<string, readonly Printer[]> = {
  volumesnapshots: [
    printer('ReadyToUse', '.status.readyToUse', 'boolean'),
    printer('SourcePVC', '.spec.source.persistentVolumeClaimName'),
    printer('SourceSnapshotContent', '.spec.source.volumeSnapshotContentName'),
    printer('RestoreSize', '.status.restoreSize'),
    printer('SnapshotClass', '.spec.volumeSnapshotClassName'),
    printer('SnapshotContent', '.status.boundVolumeSnapshotContentName'),
    printer('CreationTime', '.status.creationTime', 'date'),
    CREATED,
  ],
  volumesnapshotcontents: [
    printer('ReadyToUse', '.status.readyToUse', 'boolean'),
    printer('RestoreSize', '.status.restoreSize', 'integer'),
    printer('DeletionPolicy', '.spec.deletionPolicy'),
    printer('Driver', '.spec.driver'),
    printer('VolumeSnapshotClass', '.spec.volumeSnapshotClassName'),
    printer('VolumeSnapshot', '.spec.volumeSnapshotRef.name'),
    printer('VolumeSnapshotNamespace', '.spec.volumeSnapshotRef.namespace'),
    CREATED,
  ],
  volumesnapshotclasses: [
    printer('Driver', '.driver'),
    printer('DeletionPolicy', '.deletionPolicy'),
    CREATED,
  ],
  backupstoragelocations: [
    printer('Phase', '.status.phase'),
    printer('Last Validated', '.status.lastValidationTime', 'date'),
    CREATED,
    printer('Default', '.spec.default', 'boolean'),
  ],
};

/** Like the API server's columns for `additionalPrinterColumns`. */
const printed = ({ name, jsonPath, type, priority = 0 }: Printer): Column => ({
  name,
  type,
  priority,
  cell: (object, now) => {
    const found = at(object, jsonPath.slice(1));
    if (found === undefined || found === null) return null;
    if (type === 'date') return since(found, now);
    return type === 'string' && typeof found !== 'string' ? JSON.stringify(found) : found;
  },
});

/** Columns of a kind. The name comes first, for events last. */
export function columnsOf({ group, plural }: Resource<KubeObject>): readonly Column[] {
  const own = group === VELERO_GROUP ? CRDS.find((crd) => crd.plural === plural) : undefined;
  const printers = own?.columns ?? lookup(PRINTERS, plural);
  if (printers) return [NAME, ...printers.map(printed)];
  return lookup(COLUMNS, plural) ?? [NAME, AGE];
}

const MINUTE = 60;
const HOUR = 60 * MINUTE;
const DAY = 24 * HOUR;
const YEAR = 365 * DAY;

/** `5s`, `3m12s`, `2d4h`: the API server's ages (k8s.io/apimachinery, HumanDuration). */
export function humanDuration(ms: number): string {
  const seconds = Math.trunc(ms / 1000);
  if (seconds < -1) return '<invalid>';
  if (seconds < 0) return '0s';
  if (seconds < 2 * MINUTE) return `${seconds}s`;
  if (seconds < 10 * MINUTE) return inTwo(seconds, [MINUTE, 'm'], [1, 's']);
  if (seconds < 3 * HOUR) return `${Math.floor(seconds / MINUTE)}m`;
  if (seconds < 8 * HOUR) return inTwo(seconds, [HOUR, 'h'], [MINUTE, 'm']);
  if (seconds < 2 * DAY) return `${Math.floor(seconds / HOUR)}h`;
  if (seconds < 8 * DAY) return inTwo(seconds, [DAY, 'd'], [HOUR, 'h']);
  if (seconds < 2 * YEAR) return `${Math.floor(seconds / DAY)}d`;
  if (seconds < 8 * YEAR) return inTwo(seconds, [YEAR, 'y'], [DAY, 'd']);
  return `${Math.floor(seconds / YEAR)}y`;
}

type Unit = readonly [seconds: number, name: string];

/** Omits the smaller unit if it is 0. */
function inTwo(seconds: number, [large, largeName]: Unit, [small, smallName]: Unit): string {
  const rest = Math.floor((seconds % large) / small);
  const first = `${Math.floor(seconds / large)}${largeName}`;
  return rest === 0 ? first : `${first}${rest}${smallName}`;
}
