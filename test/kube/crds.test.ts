import * as fs from 'node:fs';
import { homedir } from 'node:os';
import { join } from 'node:path';
import { parse } from 'yaml';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { crdFiles } from '../../src/kube/api/generate.ts';
import { CRDS, customResourceDefinition, shortNamesOf } from '../../src/kube/index.ts';
import { createCrd, hasRealApi, type RealApi, startRealApi } from '../support/real-api.ts';

const GOLDEN = new URL('../golden/velero/', import.meta.url).pathname;
const PEERS =
  process.env.PEERS_DIR ?? join(process.env.XDG_CACHE_HOME ?? join(homedir(), '.cache'), '.peers');

interface Schema {
  type?: string;
  format?: string;
  nullable?: boolean;
  enum?: unknown[];
  required?: string[];
  properties?: Record<string, Schema>;
  additionalProperties?: Schema;
  items?: Schema;
}

interface Definition {
  spec: { names: { plural: string; shortNames: string[] } };
}

interface Crd {
  metadata: { name: string };
  spec: {
    versions: {
      name: string;
      additionalPrinterColumns?: {
        name: string;
        jsonPath: string;
        type: string;
        priority?: number;
      }[];
      schema: { openAPIV3Schema: Schema };
    }[];
  };
}

/** The parts of a schema that decide about validity and pruning, without descriptions. */
function essence(schema: Schema): unknown {
  const { type, format, nullable, properties, additionalProperties, items, required } = schema;
  return {
    type,
    format,
    nullable: nullable ?? false,
    enum: schema.enum && [...schema.enum].sort(),
    required: [...(required ?? [])].sort(),
    properties:
      properties &&
      Object.fromEntries(
        Object.entries(properties)
          .sort(([a], [b]) => (a < b ? -1 : 1))
          .map(([name, part]) => [name, essence(part)]),
      ),
    additionalProperties: additionalProperties && essence(additionalProperties),
    items: items && essence(items),
  };
}

const theirCrd = (plural: string, version: string): Crd => {
  const path = join(PEERS, 'crds', `velero-${version}`, `velero.io_${plural}.yaml`);
  return parse(fs.readFileSync(path, 'utf8')) as Crd;
};

const hasVelero = (): boolean => {
  if (fs.existsSync(join(PEERS, 'crds/velero-v1'))) return true;
  if (process.env.REQUIRE_PEERS === '1')
    throw new Error('peers are missing: run test/peers/install.sh velero');
  return false;
};

it('the files are what the schemas say', () => {
  const folder = new URL('../../crds/', import.meta.url);
  for (const [name, text] of crdFiles()) {
    expect(fs.readFileSync(new URL(name, folder), 'utf8'), 'run npm run build:crds').toBe(text);
  }
});

/** New fields of `spec` in Velero 1.19. A server of 1.18 does not write them. */
const NEWER: Readonly<Record<string, readonly string[]>> = {
  datauploads: ['parentSnapshot', 'sourceFSType'],
  datadownloads: ['csiSnapshot', 'restoreType', 'targetVolume.fsType'],
  podvolumebackups: ['parentSnapshot'],
  podvolumerestores: ['restoreType'],
};

it.each(Object.entries(NEWER))('%s have the new fields of Velero 1.19', (...[plural, fields]) => {
  const definition = CRDS.find((crd) => crd.plural === plural);
  const { spec } = customResourceDefinition(definition as (typeof CRDS)[number]) as unknown as Crd;
  const schema = spec.versions[0]?.schema.openAPIV3Schema.properties?.spec;
  for (const field of fields) {
    const [name = '', inner] = field.split('.').reverse();
    const parent = inner === undefined ? schema : schema?.properties?.[inner];
    expect(Object.keys(parent?.properties ?? {})).toContain(name);
    expect(parent?.required).not.toContain(name);
  }
});

/** Without what only later versions have. */
function asEarlier(plural: string, schema: Schema | undefined, above = ''): Schema | undefined {
  const { properties, ...rest } = schema ?? {};
  if (!properties) return schema;
  const kept = Object.entries(properties)
    .filter(([name]) => !NEWER[plural]?.includes(`${above}${name}`))
    .map(([name, each]) => [name, asEarlier(plural, each, `${name}.`)] as const);
  return { ...rest, properties: Object.fromEntries(kept) as Record<string, Schema> };
}

describe.skipIf(!hasVelero())("beside Velero's own", () => {
  it.each(CRDS.map(({ plural, version }) => [plural, version]))(
    '%s takes and keeps the same',
    (plural, version) => {
      const definition = CRDS.find((crd) => crd.plural === plural);
      const ours = customResourceDefinition(definition as (typeof CRDS)[number]) as unknown as Crd;
      const theirs = theirCrd(plural, version);
      expect(ours.metadata.name).toBe(theirs.metadata.name);
      const [a] = ours.spec.versions;
      const [b] = theirs.spec.versions;
      const part = (schema: Schema | undefined, name: 'spec' | 'status'): unknown =>
        essence(asEarlier(plural, schema?.properties?.[name]) ?? {});
      for (const name of ['spec', 'status'] as const) {
        expect(part(a?.schema.openAPIV3Schema, name)).toEqual(
          part(b?.schema.openAPIV3Schema, name),
        );
      }
      const columns = (list: NonNullable<typeof a>['additionalPrinterColumns']): unknown =>
        (list ?? []).map(({ name, jsonPath, type, priority }) => ({
          name,
          jsonPath,
          type,
          priority: priority ?? 0,
        }));
      expect(columns(a?.additionalPrinterColumns)).toEqual(columns(b?.additionalPrinterColumns));
    },
  );
});

/** Objects as the real Velero wrote them. */
function fixtures(): { path: string; object: Record<string, unknown> }[] {
  const path = (plural: string, version: string): string =>
    `/apis/velero.io/${version}/namespaces/velero/${plural}`;
  const found: { path: string; object: Record<string, unknown> }[] = [];
  const add = (object: unknown): void => {
    const { kind, metadata, spec, status } = object as Record<string, Record<string, unknown>>;
    const definition = CRDS.find((crd) => crd.kind === (kind as unknown as string));
    if (!definition) return;
    const name = `${String(metadata?.name)}-${found.length}`;
    found.push({
      path: path(definition.plural, definition.version),
      object: {
        apiVersion: `velero.io/${definition.version}`,
        kind,
        metadata: { name, labels: metadata?.labels },
        spec,
        ...(status && { status }),
      },
    });
  };
  for (const name of fs.readdirSync(join(GOLDEN, 'move'))) {
    const object = parse(fs.readFileSync(join(GOLDEN, 'move', name), 'utf8')) as {
      items?: unknown[];
    };
    for (const item of object.items ?? [object]) add(item);
  }
  const ready = parse(fs.readFileSync(join(GOLDEN, 'backuprepository-ready.yaml'), 'utf8')) as {
    items: unknown[];
  };
  ready.items.forEach(add);
  for (const folder of ['recorded', 'recorded-failures']) {
    for (const name of fs
      .readdirSync(join(GOLDEN, folder))
      .filter((file) => file.startsWith('data'))) {
      const versions = JSON.parse(fs.readFileSync(join(GOLDEN, folder, name), 'utf8')) as {
        object: unknown;
      }[];
      for (const { object } of versions) add(object);
    }
  }
  return found;
}

describe.skipIf(!hasRealApi() || !hasVelero())('on a real API server', () => {
  let api: RealApi;
  beforeAll(async () => {
    api = await startRealApi(21_400);
    await api.client.raw({
      method: 'POST',
      path: '/api/v1/namespaces',
      body: { metadata: { name: 'velero' } },
    });
  });
  afterAll(async () => {
    await api[Symbol.asyncDispose]();
  });

  async function install(crds: readonly object[]): Promise<void> {
    const root = '/apis/apiextensions.k8s.io/v1/customresourcedefinitions';
    for (const { plural } of CRDS) {
      const path = `${root}/${plural}.velero.io`;
      await api.client.raw({ method: 'DELETE', path }).catch(() => undefined);
      for (;;) {
        const isThere = await api.client.raw({ method: 'GET', path }).then(
          () => true,
          () => false,
        );
        if (!isThere) break;
        await new Promise((resume) => setTimeout(resume, 100));
      }
    }
    for (const crd of crds) await createCrd(api.client, crd);
  }

  /** Each fixture after a round trip. */
  async function roundTrips(): Promise<unknown[]> {
    const results: unknown[] = [];
    for (const { path, object } of fixtures()) {
      let created: unknown;
      // A fresh CRD takes a moment to be served everywhere.
      for (let attempt = 0; created === undefined; attempt++) {
        try {
          created = await api.client.raw({ method: 'POST', path, body: object });
        } catch (error) {
          if (attempt === 50) throw error;
          await new Promise((resume) => setTimeout(resume, 100));
        }
      }
      const { metadata } = created as { metadata: { name: string } };
      const { spec, status } = (await api.client.raw({
        method: 'GET',
        path: `${path}/${metadata.name}`,
      })) as {
        spec: unknown;
        status: unknown;
      };
      results.push({ name: metadata.name, spec, status });
    }
    return results;
  }

  it('every object of the real Velero comes back unchanged, through its CRDs and through ours', async () => {
    await install(CRDS.map(({ plural, version }) => theirCrd(plural, version)));
    const throughTheirs = await roundTrips();
    await install(CRDS.map(customResourceDefinition));
    const throughOurs = await roundTrips();
    expect(throughOurs.length).toBeGreaterThan(25);
    expect(throughOurs).toEqual(throughTheirs);
    const sent = fixtures().map(({ object }) => ({
      name: (object.metadata as { name: string }).name,
      spec: object.spec,
      status: object.status,
    }));
    expect(throughOurs).toEqual(sent);
  });
});

it('each kind of the group has a short name of its own, in its definition', () => {
  const names = ['crds/', 'crds/server/'].flatMap((path) => {
    const folder = new URL(`../../${path}`, import.meta.url);
    return fs
      .readdirSync(folder)
      .filter((name) => name.endsWith('.yaml'))
      .map((name) => parse(fs.readFileSync(new URL(name, folder), 'utf8')) as Definition)
      .map(({ spec }) => [spec.names.plural, spec.names.shortNames] as const);
  });
  expect(names).toHaveLength(13);
  for (const [plural, short] of names) expect(short, plural).toEqual(shortNamesOf(plural));
  expect(new Set(names.map(([, [short]]) => short)).size).toBe(13);
});
