# macOS as guest
qemu-system-x86_64 \
  -enable-kvm -m 8G -cpu Penryn,kvm=on,vendor=GenuineIntel,+invtsc,vmware-cpuid-freq=on,+ssse3,+sse4.2,+popcnt,+avx,+aes,+xsave,+xsaveopt,check -machine q35 \
  -device isa-applesmc,osk=insert-real-64-char-OSK-string-here -smbios type=2 \
  -device qemu-xhci -device usb-kbd -device usb-tablet \
  -drive if=pflash,format=raw,readonly=on,file=/srv/vm/OVMF_CODE.fd -drive if=pflash,format=raw,file=/srv/vm/OVMF_VARS.fd \
  -device ich9-ahci,id=sata -drive id=OpenCore,if=none,format=qcow2,file=/srv/vm/OpenCore.qcow2 -device ide-hd,bus=sata.2,drive=OpenCore \
  -netdev tap,id=net0,ifname=tap4,script=no,downscript=no -device vmxnet3,netdev=net0,id=net0,mac=52:54:00:c9:18:27 \
  -device vmware-svga \
  -qmp unix:/run/vm.qmp,server=on,wait=off
