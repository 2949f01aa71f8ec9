/**
 * Files on a device: what is on it, its partitions, and the files of an ext2, ext3 or ext4 file
 * system, by reads at any place; no mount, no privilege. Knows nothing of repositories or of where
 * the device comes from, and writes nothing.
 */
export type { Device } from './device.ts';
export type { DeviceEntry, DeviceFile } from './file-system.ts';
export { openDevice } from './open-device.ts';
