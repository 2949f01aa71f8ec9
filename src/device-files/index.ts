/**
 * Files on a device: its partitions, and the files of ext2, ext3 and ext4 file systems. Uses only
 * random reads: no mount, no privilege, no writes. Knows nothing of repositories or of the device's
 * origin.
 */
export type { Device } from './device.ts';
export type { DeviceEntry, DeviceFile } from './file-system.ts';
export { openDevice } from './open-device.ts';
