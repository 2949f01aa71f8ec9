import * as fs from 'node:fs';
import { join } from 'node:path';
import { peer } from './real-api.ts';

/** Not one of the usual peers: its tests run only if it is installed. */
export const hasNativeSnapshotter = (): boolean => fs.existsSync(peer('native-snapshotter'));

export const SNAPSHOTTER = 'native-snapshotter';

/** A plugin folder with this plugin alone. */
export function pluginFolder(directory: string): string {
  const folder = join(directory, 'plugins');
  fs.mkdirSync(folder, { recursive: true });
  fs.symlinkSync(peer(SNAPSHOTTER), join(folder, SNAPSHOTTER));
  return folder;
}

export interface Asked {
  readonly call: string;
  readonly pid: number;
  readonly volume?: string;
  readonly snapshot?: string;
  readonly zone?: string;
  readonly iops?: number | null;
  readonly tags?: Readonly<Record<string, string>>;
  readonly config?: Readonly<Record<string, string>>;
  readonly credentials?: string;
}

/** The directory of the plugin's volumes and snapshots. */
export class NativeDirectory {
  readonly path: string;

  constructor(path: string) {
    this.path = path;
  }

  /** A volume with one file. Returns its path, which a PersistentVolume names. */
  volume(id: string, text: string, iops?: number): string {
    const path = join(this.path, 'volumes', id);
    fs.mkdirSync(path, { recursive: true });
    fs.writeFileSync(join(path, 'file'), text);
    if (iops !== undefined) fs.writeFileSync(join(path, '.iops'), `${iops}\n`);
    return path;
  }

  textOf(kind: 'volumes' | 'snapshots', id: string): string {
    return fs.readFileSync(join(this.path, kind, id, 'file'), 'utf8');
  }

  get snapshots(): string[] {
    const path = join(this.path, 'snapshots');
    return fs.existsSync(path) ? fs.readdirSync(path).sort() : [];
  }

  /** Calls to the plugin, in order. */
  asked(call?: string): Asked[] {
    const path = join(this.path, 'asked.jsonl');
    if (!fs.existsSync(path)) return [];
    return fs
      .readFileSync(path, 'utf8')
      .trim()
      .split('\n')
      .map((line) => JSON.parse(line) as Asked)
      .filter((each) => call === undefined || each.call === call);
  }
}
