/**
 * `npx node test/support/server-crds.ts` writes crds/server/: the definitions of Velero's kinds
 * that only a server uses. Velero's CLI and server find the same fields, defaults and rules. Short
 * names, and fields for restores in place, are those of Velero 1.19. Only the structure is copied,
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
  versions: { schema: { openAPIV3Schema: Properties } }[];
}

/** New fields of a Restore in Velero 1.19 (config/crd/v1/bases/velero.io_restores.yaml). */
const NEWER = {
  spec: { existingVolumeDataPolicy: { nullable: true, type: 'string' } },
  uploaderConfig: { deleteExtraFiles: { nullable: true, type: 'boolean' } },
};

function withNewer(spec: Crd['spec']): Crd['spec'] {
  if (spec.names.plural !== 'restores') return spec;
  const newer = structuredClone(spec) as Crd['spec'] & Versions;
  for (const { schema } of newer.versions) {
    const { properties } = schema.openAPIV3Schema.properties.spec as Properties;
    Object.assign(properties, NEWER.spec);
    Object.assign((properties.uploaderConfig as Properties).properties, NEWER.uploaderConfig);
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
