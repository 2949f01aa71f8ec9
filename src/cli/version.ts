import manifest from '../../package.json' with { type: 'json' };

export const VERSION: string = manifest.version;
/** The Velero whose objects and bucket this program reads and writes. */
export const VELERO_VERSION = 'v1.18.3';
