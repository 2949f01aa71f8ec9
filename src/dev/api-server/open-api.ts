import { readFileSync } from 'node:fs';
import { brotliDecompressSync } from 'node:zlib';
import { lookup } from '../../base/index.ts';
import { apiVersionOf, CRDS, customResourceDefinition, VELERO_GROUP } from '../../kube/index.ts';
import { DEV_RESOURCES } from './resources.ts';

type Schema = Readonly<Record<string, unknown>>;
type Schemas = Readonly<Record<string, Schema>>;

const LOCATION = 'io.velero.v1.BackupStorageLocation';
const GVK = 'x-kubernetes-group-version-kind';

let loaded: Schemas | undefined;

/**
 * Schemas of Kubernetes' own kinds, of snapshots and of Velero's locations, as a real server serves
 * them. `npm run build:schemas` downloads them from one.
 */
function knownSchemas(): Schemas {
  const packed = (): Buffer => readFileSync(new URL('schemas.json.br', import.meta.url));
  loaded ??= JSON.parse(brotliDecompressSync(packed()).toString('utf8')) as Schemas;
  return loaded;
}

/** OpenAPI v3 for kubectl's explanations and patches; undefined for all other paths. */
export function openApi(path: string): object | undefined {
  if (path === '/openapi/v3') return index();
  const match = /^\/openapi\/v3\/((?:api|apis)\/.*)$/.exec(path);
  return match ? documentOf(match[1] ?? '') : undefined;
}

const rootOf = (groupVersion: string): string =>
  groupVersion.includes('/') ? `apis/${groupVersion}` : `api/${groupVersion}`;

function index(): object {
  const roots = [...new Set(DEV_RESOURCES.map((resource) => rootOf(apiVersionOf(resource))))];
  const paths = roots.map((root) => [root, { serverRelativeURL: `/openapi/v3/${root}` }]);
  return { paths: Object.fromEntries(paths) as object };
}

/** Marks each kind as validated by the server, so that kubectl does not validate it. */
function documentOf(root: string): object | undefined {
  const found = DEV_RESOURCES.filter((resource) => rootOf(apiVersionOf(resource)) === root);
  if (found.length === 0) return undefined;
  const paths = found.map(({ group, version, kind, plural, namespaced }) => [
    `/${root}/${namespaced ? 'namespaces/{namespace}/' : ''}${plural}/{name}`,
    {
      patch: {
        parameters: [{ name: 'fieldValidation', in: 'query', schema: { type: 'string' } }],
        responses: { 200: { description: 'OK' } },
        'x-kubernetes-action': 'patch',
        [GVK]: { group, version, kind },
      },
    },
  ]);
  const wanted = found.map(({ group, version, kind }) => `${group}/${version}/${kind}`);
  return {
    openapi: '3.0.0',
    info: { title: 'longshore-dev', version: '1' },
    paths: Object.fromEntries(paths) as object,
    components: { schemas: schemasOf(wanted) },
  };
}

/** Schemas of kinds, with all schemas that they reference. */
function schemasOf(kinds: readonly string[]): Schemas {
  const all = { ...knownSchemas(), ...ownSchemas() };
  const names = new Set(
    Object.keys(all).filter((name) =>
      kindsOf(lookup(all, name)).some((kind) => kinds.includes(kind)),
    ),
  );
  // Iteration over a set includes the names added during it.
  for (const name of names) {
    for (const [, referred = ''] of JSON.stringify(lookup(all, name)).matchAll(
      /"#\/components\/schemas\/([^"]+)"/g,
    )) {
      names.add(referred);
    }
  }
  return Object.fromEntries([...names].map((name) => [name, lookup(all, name) ?? {}]));
}

function kindsOf(schema: Schema | undefined): string[] {
  const kinds = (schema?.[GVK] ?? []) as { group: string; version: string; kind: string }[];
  return kinds.map(({ group, version, kind }) => `${group}/${version}/${kind}`);
}

/** Schemas of the custom resources that we define. */
function ownSchemas(): Schemas {
  // The common fields of custom resources have the same texts.
  const { properties: model } = knownSchemas()[LOCATION] as { properties: Schemas };
  const own = CRDS.map((definition) => {
    const { kind, version } = definition;
    const crd = customResourceDefinition(definition) as unknown as {
      spec: { versions: [{ schema: { openAPIV3Schema: { properties: Schemas } } }] };
    };
    const schema = crd.spec.versions[0].schema.openAPIV3Schema;
    const { apiVersion, kind: ofKind, metadata } = model;
    const properties = { ...schema.properties, apiVersion, kind: ofKind, metadata };
    return [
      `io.velero.${version}.${kind}`,
      { ...schema, properties, [GVK]: [{ group: VELERO_GROUP, version, kind }] },
    ];
  });
  return Object.fromEntries(own) as Schemas;
}
