import { existsSync, globSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { parse } from 'yaml';
import { kustomized, type Manifest } from './kustomize.ts';

/** The manifests, before any value of a cluster is filled in. */
export interface InstallAssets {
  readonly definitions: readonly Manifest[];
  /** manifests/whole. */
  readonly objects: readonly Manifest[];
}

/** Reads a checkout. Throws `BAD_MANIFESTS`. */
export function assetsOf(root: string): InstallAssets {
  const files = globSync('crds/**/*.yaml', { cwd: root }).sort();
  return {
    definitions: files.map((file) => parse(readFileSync(join(root, file), 'utf8')) as Manifest),
    objects: kustomized(join(root, 'manifests/whole')),
  };
}

/** The installed program has all manifests in one file beside it. Each call returns new copies. */
export function loadAssets(): InstallAssets {
  const packed = new URL('install.json', import.meta.url);
  if (existsSync(packed)) return JSON.parse(readFileSync(packed, 'utf8')) as InstallAssets;
  return assetsOf(new URL('../../../', import.meta.url).pathname);
}
