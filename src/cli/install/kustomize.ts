import { readFileSync, statSync } from 'node:fs';
import { dirname, join, resolve } from 'node:path';
import { parse, parseAllDocuments } from 'yaml';
import { CodedError } from '../../base/index.ts';
import { jsonPatch } from '../../dev/index.ts';

/** An object to create in a cluster. */
export interface Manifest {
  readonly apiVersion: string;
  readonly kind: string;
  metadata: {
    name: string;
    namespace?: string;
    labels?: Record<string, string>;
    annotations?: Record<string, string>;
  };
  [field: string]: unknown;
}

interface Kustomization {
  readonly namespace?: string;
  readonly resources?: readonly string[];
  readonly patches?: readonly {
    readonly target: { readonly kind: string; readonly name: string };
    readonly patch: string;
  }[];
  readonly images?: readonly Image[];
  readonly [field: string]: unknown;
}

interface Image {
  readonly name: string;
  readonly newName?: string;
  readonly newTag?: string;
}

interface Subject {
  readonly kind?: string;
  readonly name?: string;
  namespace?: string;
}

/** Keys that this code supports. None of them changes names, so references stay valid. */
const KNOWN = [
  ...['apiVersion', 'kind', 'namespace', 'resources', 'patches', 'images', 'configurations'],
];
const CLUSTER_KINDS = [
  'Namespace',
  'ClusterRole',
  'ClusterRoleBinding',
  'CustomResourceDefinition',
  'ValidatingAdmissionPolicy',
  'ValidatingAdmissionPolicyBinding',
];
export const isOfCluster = ({ kind }: { readonly kind: string }): boolean =>
  CLUSTER_KINDS.includes(kind);

/**
 * The output of `kubectl kustomize` for a folder of this project's manifests. Supports only the
 * features that they use. Throws `BAD_MANIFESTS` for anything else.
 */
export function kustomized(folder: string): Manifest[] {
  const file = join(folder, 'kustomization.yaml');
  const {
    namespace,
    resources = [],
    patches = [],
    images = [],
    ...rest
  } = parse(readFileSync(file, 'utf8')) as Kustomization;
  const unknown = Object.keys(rest).find((key) => !KNOWN.includes(key));
  if (unknown !== undefined) throw bad(`${file} has ${unknown}, which is not known here`);
  let objects = resources.flatMap((name) => load(resolve(dirname(file), name)));
  for (const { target, patch } of patches) {
    const isMeant = ({ kind, metadata }: Manifest): boolean =>
      kind === target.kind && metadata.name === target.name;
    if (!objects.some(isMeant))
      throw bad(`${file} changes ${target.kind} ${target.name}, which is not there`);
    const steps: unknown = parse(patch);
    objects = objects.map((each) => (isMeant(each) ? (jsonPatch(each, steps) as Manifest) : each));
  }
  for (const each of objects) setImages(each, images);
  if (namespace !== undefined) moveInto(namespace, objects);
  return objects;
}

/** Sets the images of all containers below `value`, for any kind. */
function setImages(value: unknown, images: readonly Image[]): void {
  if (typeof value !== 'object' || value === null) return;
  for (const [key, field] of Object.entries(value)) {
    if (key === 'containers' || key === 'initContainers') {
      for (const container of field as { image?: string }[]) setImage(container, images);
    } else setImages(field, images);
  }
}

function setImage(container: { image?: string }, images: readonly Image[]): void {
  const [, name = '', tag] = /^(.*?)(?::([^:/]+))?$/.exec(container.image ?? '') ?? [];
  const found = images.find((each) => each.name === name);
  if (!found) return;
  const { newName = name, newTag = tag } = found;
  container.image = newTag === undefined ? newName : `${newName}:${newTag}`;
}

function load(path: string): Manifest[] {
  if (statSync(path).isDirectory()) return kustomized(path);
  return parseAllDocuments(readFileSync(path, 'utf8')).map((each) => each.toJS() as Manifest);
}

/** Also moves references to their ServiceAccounts, and the parameters of policies. */
export function moveInto(namespace: string, objects: readonly Manifest[]): void {
  const accounts = new Set(
    objects.filter(({ kind }) => kind === 'ServiceAccount').map(({ metadata }) => metadata.name),
  );
  for (const each of objects) {
    if (!isOfCluster(each)) each.metadata.namespace = namespace;
    for (const subject of (each.subjects ?? []) as Subject[]) {
      const isOurs = subject.kind === 'ServiceAccount' && accounts.has(subject.name ?? '');
      if (isOurs) subject.namespace = namespace;
    }
    if (each.kind === 'ValidatingAdmissionPolicyBinding') {
      const { paramRef } = each.spec as { paramRef?: { namespace?: string } };
      if (paramRef) paramRef.namespace = namespace;
    }
  }
}

const bad = (text: string): CodedError => new CodedError('BAD_MANIFESTS', text);
