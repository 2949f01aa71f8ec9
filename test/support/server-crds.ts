/**
 * `npx node test/support/server-crds.ts` writes crds/server/: the definitions of Velero's kinds
 * that only a server uses. Velero's CLI and server find the same fields, defaults and rules. Short
 * names, columns and new fields are those of Velero 1.19. Only the structure is copied,
 * and no text.
 */
import { mkdirSync, readdirSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { parse, stringify } from 'yaml';
import { CRDS, shortNamesOf } from '../../src/kube/index.ts';
import { PEERS } from './kopia.ts';

export const VELERO_CRDS = join(PEERS, 'crds/velero-v1');

interface Crd {
  readonly metadata: { readonly name: string };
  readonly spec: { readonly names: { readonly plural: string } } & Record<string, unknown>;
}

/** Removes texts and sorts keys. `key`: the value's key; a field may be called description. */
function structure(value: unknown, key = ''): unknown {
  if (Array.isArray(value)) return value.map((each) => structure(each));
  if (typeof value !== 'object' || value === null) return value;
  const entries = Object.entries(value)
    .filter(([name]) => name !== 'description' || key === 'properties')
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([name, each]) => [name, structure(each, name)] as const);
  return Object.fromEntries(entries);
}

interface Properties {
  properties: Record<string, Properties>;
}

interface Versions {
  versions: {
    additionalPrinterColumns?: object[];
    schema: { openAPIV3Schema: Properties };
  }[];
}

type Column = readonly [name: string, jsonPath: string, type: string];

const PHASE: Column = ['Status', '.status.phase', 'string'];
const AGE: Column = ['Age', '.metadata.creationTimestamp', 'date'];
const PROBLEMS: readonly Column[] = [
  ['Errors', '.status.errors', 'integer'],
  ['Warnings', '.status.warnings', 'integer'],
];

/** Columns of `kubectl get` in Velero 1.19. */
const COLUMNS: Readonly<Record<string, readonly Column[]>> = {
  backups: [PHASE, ...PROBLEMS, ['Started', '.status.startTimestamp', 'date'], AGE],
  restores: [['Backup', '.spec.backupName', 'string'], PHASE, ...PROBLEMS, AGE],
  downloadrequests: [
    ['Target Kind', '.spec.target.kind', 'string'],
    ['Target Name', '.spec.target.name', 'string'],
    PHASE,
    AGE,
  ],
  serverstatusrequests: [
    PHASE,
    ['Server Version', '.status.serverVersion', 'string'],
    ['Processed', '.status.processedTimestamp', 'date'],
    AGE,
  ],
  volumesnapshotlocations: [
    ['Provider', '.spec.provider', 'string'],
    ['Phase', '.status.phase', 'string'],
    AGE,
  ],
};

const BACKUP_TYPE = { enum: ['Full', 'Incremental'], type: 'string' };
const ANNOTATIONS = { additionalProperties: { type: 'string' }, nullable: true, type: 'object' };
const OPTIONAL_BOOLEAN = { nullable: true, type: 'boolean' };

/** New fields in Velero 1.19 (config/crd/v1/bases), by the path of their parent. */
const FIELDS: Readonly<Record<string, Readonly<Record<string, object>>>> = {
  'backups spec': { backupType: BACKUP_TYPE },
  'backups spec.metadata': { annotations: ANNOTATIONS },
  'schedules spec.template': { backupType: BACKUP_TYPE },
  'schedules spec.template.metadata': { annotations: ANNOTATIONS },
  'downloadrequests status': {
    message: { type: 'string' },
    phase: { enum: ['New', 'Processed', 'Failed'], type: 'string' },
  },
  'restores spec': {
    existingVolumeDataPolicy: { nullable: true, type: 'string' },
    skipDefaultResourceModifier: OPTIONAL_BOOLEAN,
  },
  'restores spec.uploaderConfig': { deleteExtraFiles: OPTIONAL_BOOLEAN },
};

function withNewer(spec: Crd['spec']): Crd['spec'] {
  const { plural } = spec.names;
  const newer = structuredClone(spec) as Crd['spec'] & Versions;
  for (const version of newer.versions) {
    const columns = COLUMNS[plural];
    if (columns) {
      version.additionalPrinterColumns = columns.map(([name, jsonPath, type]) => ({
        name,
        jsonPath,
        type,
      }));
    }
    for (const [where, fields] of Object.entries(FIELDS)) {
      const [kind, path = ''] = where.split(' ');
      if (kind !== plural) continue;
      const parent = path
        .split('.')
        .reduce((at, name) => at.properties[name] as Properties, version.schema.openAPIV3Schema);
      Object.assign(parent.properties, fields);
    }
  }
  return newer;
}

/** File name and text of each. */
export function serverCrds(): Map<string, string> {
  const files = new Map<string, string>();
  for (const name of readdirSync(VELERO_CRDS).sort()) {
    const { metadata, spec } = parse(readFileSync(join(VELERO_CRDS, name), 'utf8')) as Crd;
    if (CRDS.some(({ plural }) => plural === spec.names.plural)) continue;
    const definition = {
      apiVersion: 'apiextensions.k8s.io/v1',
      kind: 'CustomResourceDefinition',
      metadata: { name: metadata.name, labels: { component: 'velero' } },
      spec: structure({
        ...withNewer(spec),
        names: { ...spec.names, shortNames: shortNamesOf(spec.names.plural) },
      }),
    };
    files.set(name, stringify(definition, { aliasDuplicateObjects: false }));
  }
  return files;
}

if (import.meta.main) {
  const folder = new URL('../../crds/server/', import.meta.url);
  mkdirSync(folder, { recursive: true });
  for (const [name, text] of serverCrds()) writeFileSync(new URL(name, folder), text);
}
