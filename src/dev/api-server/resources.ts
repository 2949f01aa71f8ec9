import { lookup } from '../../base/index.ts';
import {
  BACKUP_REPOSITORIES,
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  CLUSTER_ROLE_BINDINGS,
  CONFIG_MAPS,
  DAEMON_SETS,
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  DELETE_BACKUP_REQUESTS,
  DEPLOYMENTS,
  DOWNLOAD_REQUESTS,
  EVENTS,
  type KubeObject,
  LEASES,
  NAMESPACES,
  NODES,
  POD_VOLUME_BACKUPS,
  POD_VOLUME_RESTORES,
  PODS,
  PRIORITY_CLASSES,
  PVCS,
  PVS,
  type Resource,
  RESTORES,
  SCHEDULES,
  SECRETS,
  SERVER_STATUS_REQUESTS,
  shortNamesOf,
  STORAGE_CLASSES,
  VELERO_GROUP,
  VOLUME_ATTACHMENTS,
  VOLUME_SNAPSHOT_CLASSES,
  VOLUME_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOT_LOCATIONS,
  VOLUME_SNAPSHOTS,
} from '../../kube/index.ts';

const SERVICE_ACCOUNTS: Resource<KubeObject> = {
  group: '',
  version: 'v1',
  kind: 'ServiceAccount',
  plural: 'serviceaccounts',
  namespaced: true,
};
/** There are no services, but `kubectl cluster-info` lists them. */
const SERVICES: Resource<KubeObject> = {
  group: '',
  version: 'v1',
  kind: 'Service',
  plural: 'services',
  namespaced: true,
};

/** Not from a CustomResourceDefinition. */
export const isBuiltIn = ({ group }: Resource<KubeObject>): boolean =>
  group !== VELERO_GROUP && group !== VOLUME_SNAPSHOT_CLASSES.group;

export const isReadOnly = (resource: Resource<KubeObject>): boolean => resource === SERVICES;

/** The resources of the embedded API server. */
export const DEV_RESOURCES: readonly Resource<KubeObject>[] = [
  PODS,
  PVCS,
  PVS,
  NODES,
  NAMESPACES,
  SECRETS,
  CONFIG_MAPS,
  EVENTS,
  SERVICE_ACCOUNTS,
  SERVICES,
  DAEMON_SETS,
  DEPLOYMENTS,
  LEASES,
  STORAGE_CLASSES,
  VOLUME_ATTACHMENTS,
  PRIORITY_CLASSES,
  CLUSTER_ROLE_BINDINGS,
  VOLUME_SNAPSHOTS,
  VOLUME_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOT_CLASSES,
  DATA_UPLOADS,
  DATA_DOWNLOADS,
  BACKUP_REPOSITORIES,
  BACKUP_STORAGE_LOCATIONS,
  BACKUPS,
  DELETE_BACKUP_REQUESTS,
  DOWNLOAD_REQUESTS,
  SERVER_STATUS_REQUESTS,
  VOLUME_SNAPSHOT_LOCATIONS,
  RESTORES,
  SCHEDULES,
  POD_VOLUME_BACKUPS,
  POD_VOLUME_RESTORES,
];

interface Names {
  readonly shortNames?: readonly string[];
  readonly categories?: readonly string[];
}

const ALL = ['all'];
/** Short names and categories, as in the real server and in the definitions. */
const NAMES: Readonly<Record<string, Names>> = {
  configmaps: { shortNames: ['cm'] },
  daemonsets: { shortNames: ['ds'], categories: ALL },
  deployments: { shortNames: ['deploy'], categories: ALL },
  events: { shortNames: ['ev'] },
  namespaces: { shortNames: ['ns'] },
  nodes: { shortNames: ['no'] },
  persistentvolumeclaims: { shortNames: ['pvc'] },
  persistentvolumes: { shortNames: ['pv'] },
  pods: { shortNames: ['po'], categories: ALL },
  priorityclasses: { shortNames: ['pc'] },
  serviceaccounts: { shortNames: ['sa'] },
  services: { shortNames: ['svc'], categories: ALL },
  storageclasses: { shortNames: ['sc'] },
  volumesnapshotclasses: { shortNames: ['vsclass', 'vsclasses'] },
  volumesnapshotcontents: { shortNames: ['vsc', 'vscs'] },
  volumesnapshots: { shortNames: ['vs'] },
};
export const namesOf = ({ group, plural }: Resource<KubeObject>): Names =>
  group === VELERO_GROUP ? { shortNames: shortNamesOf(plural) } : (lookup(NAMES, plural) ?? {});

export interface ResourcePlace {
  readonly resource: Resource<KubeObject>;
  readonly namespace: string | undefined;
  readonly name: string | undefined;
  readonly subresource: string | undefined;
}

/** The object or list at an API path. */
export function resourceAt(path: string): ResourcePlace | undefined {
  const parts = path
    .split('/')
    .filter((part) => part !== '')
    .map(decodeURIComponent);
  // Objects never have these names, and pod logs are files named after objects.
  if (parts.some((part) => /^\.{1,2}$|\//.test(part))) return undefined;
  const group = parts[0] === 'api' ? '' : parts[1];
  const rest = parts.slice(parts[0] === 'api' ? 2 : 3);
  let namespace: string | undefined;
  // A namespace and its objects share a path prefix.
  const isOwnPart = rest[2] === 'status' || rest[2] === 'finalize';
  if (rest[0] === 'namespaces' && rest.length > 2 && !isOwnPart) {
    namespace = rest[1];
    rest.splice(0, 2);
  }
  const [plural, name, subresource] = rest;
  const resource = DEV_RESOURCES.find((known) => known.group === group && known.plural === plural);
  return resource && { resource, namespace, name, subresource };
}

export const DEFAULT_STORAGE_CLASS = 'storageclass.kubernetes.io/is-default-class';
export const DEFAULT_SNAPSHOT_CLASS = 'snapshot.storage.kubernetes.io/is-default-class';
