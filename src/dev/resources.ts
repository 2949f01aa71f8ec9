import {
  BACKUP_REPOSITORIES,
  BACKUP_STORAGE_LOCATIONS,
  CONFIG_MAPS,
  DAEMON_SETS,
  DATA_DOWNLOADS,
  DATA_UPLOADS,
  EVENTS,
  type KubeObject,
  NAMESPACES,
  NODES,
  POD_VOLUME_BACKUPS,
  POD_VOLUME_RESTORES,
  PODS,
  PRIORITY_CLASSES,
  PVCS,
  PVS,
  type Resource,
  SECRETS,
  STORAGE_CLASSES,
  VOLUME_ATTACHMENTS,
  VOLUME_SNAPSHOT_CONTENTS,
  VOLUME_SNAPSHOTS,
} from '../kube/index.ts';

/** What the embedded API server knows. */
export const DEV_RESOURCES: readonly Resource<KubeObject>[] = [
  PODS,
  PVCS,
  PVS,
  NODES,
  NAMESPACES,
  SECRETS,
  CONFIG_MAPS,
  EVENTS,
  DAEMON_SETS,
  STORAGE_CLASSES,
  VOLUME_ATTACHMENTS,
  PRIORITY_CLASSES,
  VOLUME_SNAPSHOTS,
  VOLUME_SNAPSHOT_CONTENTS,
  DATA_UPLOADS,
  DATA_DOWNLOADS,
  BACKUP_REPOSITORIES,
  BACKUP_STORAGE_LOCATIONS,
  POD_VOLUME_BACKUPS,
  POD_VOLUME_RESTORES,
];

export interface ResourcePlace {
  readonly resource: Resource<KubeObject>;
  readonly namespace: string | undefined;
  readonly name: string | undefined;
  readonly subresource: string | undefined;
}

/** The object or list that a path of the API names. */
export function resourceAt(path: string): ResourcePlace | undefined {
  const parts = path
    .split('/')
    .filter((part) => part !== '')
    .map(decodeURIComponent);
  // No object has such a name, and the logs of pods are files that are named after them.
  if (parts.some((part) => /^\.{1,2}$|\//.test(part))) return undefined;
  const group = parts[0] === 'api' ? '' : parts[1];
  const rest = parts.slice(parts[0] === 'api' ? 2 : 3);
  let namespace: string | undefined;
  // Namespaces themselves are at the same place as what is in them.
  if (rest[0] === 'namespaces' && rest.length > 2 && rest[2] !== 'status') {
    namespace = rest[1];
    rest.splice(0, 2);
  }
  const [plural, name, subresource] = rest;
  const resource = DEV_RESOURCES.find((known) => known.group === group && known.plural === plural);
  return resource && { resource, namespace, name, subresource };
}
