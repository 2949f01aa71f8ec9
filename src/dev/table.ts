import type { IncomingMessage } from 'node:http';
import { CRDS, type KubeObject, type Resource } from '../kube/index.ts';
import type { Stored } from './store.ts';

interface Column {
  readonly name: string;
  readonly type: string;
  readonly jsonPath: string;
  readonly priority?: number;
}

const PHASE: Column = { name: 'Status', type: 'string', jsonPath: '.status.phase' };
const AGE: Column = { name: 'Age', type: 'date', jsonPath: '.metadata.creationTimestamp' };
const COLUMNS: Record<string, readonly Column[]> = {
  pods: [PHASE, { name: 'Node', type: 'string', jsonPath: '.spec.nodeName' }, AGE],
  persistentvolumeclaims: [
    PHASE,
    { name: 'Volume', type: 'string', jsonPath: '.spec.volumeName' },
    AGE,
  ],
  persistentvolumes: [
    PHASE,
    { name: 'Claim', type: 'string', jsonPath: '.spec.claimRef.name' },
    AGE,
  ],
  volumesnapshots: [{ name: 'ReadyToUse', type: 'boolean', jsonPath: '.status.readyToUse' }, AGE],
  events: [
    { name: 'Type', type: 'string', jsonPath: '.type' },
    { name: 'Reason', type: 'string', jsonPath: '.reason' },
    { name: 'Object', type: 'string', jsonPath: '.involvedObject.name' },
    { name: 'Message', type: 'string', jsonPath: '.message' },
  ],
};

/** kubectl asks for tables to print; programs do not. */
export const isTableWanted = ({ headers }: IncomingMessage): boolean =>
  (headers.accept ?? '').includes('as=Table');

/** Objects in the columns that `kubectl get` shows, as a real server would send them (meta.k8s.io/v1, Table). */
export function tableOf(
  resource: Resource<KubeObject>,
  objects: readonly Stored[],
  version: number,
): object {
  const crd = CRDS.find(({ plural }) => plural === resource.plural);
  const columns: readonly Column[] = (resource.group === 'velero.io'
    ? crd?.columns
    : COLUMNS[resource.plural]) ?? [AGE];
  return {
    kind: 'Table',
    apiVersion: 'meta.k8s.io/v1',
    metadata: { resourceVersion: String(version) },
    columnDefinitions: [
      { name: 'Name', type: 'string', format: 'name', description: '', priority: 0 },
      ...columns.map(({ name, type, priority = 0 }) => ({
        name,
        type: type === 'date' ? 'string' : type,
        format: '',
        description: '',
        priority,
      })),
    ],
    rows: objects.map((object) => ({
      cells: [object.metadata.name, ...columns.map((column) => cellOf(object, column))],
      object: {
        kind: 'PartialObjectMetadata',
        apiVersion: 'meta.k8s.io/v1',
        metadata: object.metadata,
      },
    })),
  };
}

function cellOf(object: Stored, { jsonPath, type }: Column): unknown {
  let at: unknown = object;
  for (const step of jsonPath.split('.').slice(1))
    at = (at as Record<string, unknown> | undefined)?.[step];
  if (at === undefined || at === null) return type === 'date' ? '' : null;
  if (type !== 'date') return at;
  const seconds = Math.max(
    0,
    Math.floor(
      (Date.parse(new Date().toISOString()) - Date.parse(typeof at === 'string' ? at : '')) / 1000,
    ),
  );
  if (seconds < 120) return `${seconds}s`;
  return seconds < 7200 ? `${Math.floor(seconds / 60)}m` : `${Math.floor(seconds / 3600)}h`;
}
